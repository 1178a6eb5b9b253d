//! The commands, one file or folder each, and what several of them share: how descriptors are typed, how servers are
//! reached, how latencies are shown.

pub(crate) mod bench;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod cleanup;
pub(crate) mod client;
pub(crate) mod explain;
pub mod generate;
pub(crate) mod inject;
pub(crate) mod latency;
pub(crate) mod migrate;
pub(crate) mod mysql;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod webhook;
pub(crate) mod yaml;

use std::any::TypeId;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::observe::logging;
use crate::settings::serve_flags::ServeFlags;

/// A rate limit service for Envoy: true sliding windows, answered from local memory.
///
/// Reads the rule files of envoyproxy/ratelimit as they are. Without a command it serves.
#[derive(Parser, Debug)]
#[command(name = "tidegate", version, max_term_width = 110, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub serve: ServeFlags,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Answer Envoy: gRPC on port 8081, HTTP on port 8080
    Serve(Box<ServeFlags>),
    /// Check rule files: every error and warning with its file, line and column
    ///
    /// Exits with 0 if the files can be loaded (there may be warnings), and with 1 if not.
    Check(Box<check::CheckFlags>),
    /// Explain which rule a descriptor meets, which were passed over and why, and what key is counted
    ///
    /// Works on the rule files alone; no service needs to run. Each descriptor is one argument.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainFlags),
    /// Generate the configuration of Envoy or Istio that sends exactly what the rules wait for
    Gen(Box<generate::GenFlags>),
    /// Put Tidegate as a sidecar beside the workloads of Kubernetes manifests
    #[command(after_help = inject::EXAMPLES)]
    Inject(Box<inject::InjectFlags>),
    /// Serve the admission webhook that injects the sidecar into pods
    ///
    /// For Kubernetes' API server: AdmissionReview v1 over TLS.
    Webhook(Box<webhook::WebhookFlags>),
    /// Show how a running process is: its rules and keys, and the health of its region and its Redis
    ///
    /// Reads the admin port.
    #[command(after_help = status::EXAMPLES)]
    Status(status::StatusFlags),
    /// Ask a server as Envoy does: verdict, what is left of each limit, headers, metadata, latency
    ///
    /// Works against any server of envoy.service.ratelimit.v3. Each descriptor is one argument.
    #[command(after_help = call::EXAMPLES, mut_arg("cert_key", |arg| arg.visible_alias("key")))]
    Call(Box<call::CallFlags>),
    /// Put load on a server: requests per second, latency, verdicts, and what it costs both sides
    ///
    /// Works against any server of envoy.service.ratelimit.v3.
    #[command(after_help = bench::EXAMPLES)]
    Bench(Box<bench::BenchFlags>),
    /// Make the table in MySQL that regions share, or bring it up to date
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::MigrateFlags),
    /// Delete expired rows from the table in MySQL that regions share
    #[command(after_help = cleanup::EXAMPLES)]
    Cleanup(cleanup::CleanupFlags),
}

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

fn unset_empty(command: clap::Command) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| if arg.get_env().is_some_and(is_empty) { arg.env(None::<&str>) } else { arg })
        .mut_subcommands(unset_empty)
}

/// Says what is wrong and exits. A value that was not typed came from a variable, which is named.
fn give_up(error: &clap::Error, command: &clap::Command) -> ! {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { error.exit() };
    let flag = shown.split(['=', ' ']).next().unwrap_or_default();
    let is_typed = std::env::args().any(|arg| arg == flag || arg.starts_with(&format!("{flag}=")));
    let commands = std::iter::once(command).chain(command.get_subcommands());
    let is_it = |arg: &&clap::Arg| arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long));
    let arg = commands.flat_map(clap::Command::get_arguments).find(|arg| is_it(arg) && arg.get_env().is_some());
    let variable = arg.and_then(clap::Arg::get_env).filter(|_| !is_typed);
    let Some(variable) = variable.filter(|variable| std::env::var_os(variable).is_some()) else { error.exit() };
    logging::say(error.to_string().trim_end());
    logging::say(&format!("\nThe value is that of the variable {}.", variable.display()));
    end()
}

#[expect(clippy::disallowed_methods, reason = "nothing was started that would have to be ended")]
fn end() -> ! {
    std::process::exit(1)
}

/// The first variable that is not UTF-8 text. Paths are left out, because a path may be any bytes.
fn variable_that_is_no_text(command: &clap::Command) -> Option<String> {
    let is_path = |arg: &clap::Arg| arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let commands = std::iter::once(command).chain(command.get_subcommands());
    let variables =
        commands.flat_map(clap::Command::get_arguments).filter(|arg| !is_path(arg)).filter_map(clap::Arg::get_env);
    let is_no_text = |name: &&std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.to_str().is_none());
    variables.into_iter().find(is_no_text).map(|name| name.to_string_lossy().into_owned())
}

/// The environment variables that any command knows.
pub fn known_variables() -> Vec<String> {
    let command = Cli::command();
    let commands = std::iter::once(&command).chain(command.get_subcommands());
    let variables = commands.flat_map(|command| command.get_arguments().filter_map(|arg| arg.get_env()));
    let mut names: Vec<String> = variables.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// How a command ended. Errors that it could not report itself travel as `anyhow::Error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Success,
    Failure,
    /// The process or the database that was to be asked did not answer.
    NoAnswer,
}

impl Exit {
    /// The exit of a command whose outcome is clear before it is printed. A reader who closes the pipe early changes
    /// nothing about it.
    pub fn after(self, printed: std::io::Result<()>) -> anyhow::Result<Exit> {
        match printed {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(self),
        }
    }
}

impl Cli {
    /// Reads flags and environment. A variable that is set but empty counts as unset, as it does in
    /// envoyproxy/ratelimit: manifests are full of them.
    pub fn read() -> Cli {
        let mut command = unset_empty(Cli::command());
        // The flags of `serve` are there without a command too. Other commands have no use for their environment.
        let is_command = |name: String| Cli::command().get_subcommands().any(|command| command.get_name() == name);
        if std::env::args().nth(1).is_some_and(is_command) {
            command = command.mut_args(|arg| arg.env(None::<&str>));
        }
        if let Some(name) = variable_that_is_no_text(&command) {
            logging::say(&format!("tidegate: the variable {name} is not UTF-8 text: set it anew, or unset it"));
            end();
        }
        let matches = command.clone().try_get_matches().unwrap_or_else(|error| give_up(&error, &command));
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.command {
            None => serve::run(&self.serve),
            Some(Command::Serve(flags)) => serve::run(&flags),
            Some(Command::Check(flags)) => check::run(&flags),
            Some(Command::Explain(flags)) => explain::run(&flags),
            Some(Command::Gen(flags)) => generate::run(&flags),
            Some(Command::Inject(flags)) => inject::run(&flags),
            Some(Command::Webhook(flags)) => webhook::run(&flags),
            Some(Command::Status(flags)) => status::run(&flags),
            Some(Command::Call(flags)) => call::run(&flags),
            Some(Command::Bench(flags)) => bench::run(&flags),
            Some(Command::Migrate(flags)) => migrate::run(&flags),
            Some(Command::Cleanup(flags)) => cleanup::run(&flags),
        }
    }
}
