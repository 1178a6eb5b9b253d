//! Parse the flags, run the command, map the outcome to an exit code.

use std::process::ExitCode;

use tidegate::cli::{Cli, Exit};
use tidegate::observe::logging::say;

fn main() -> ExitCode {
    match Cli::read().run() {
        Ok(Exit::Success) => ExitCode::SUCCESS,
        Ok(Exit::Failure) => ExitCode::FAILURE,
        Ok(Exit::NoAnswer) => ExitCode::from(2),
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("tidegate: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}
