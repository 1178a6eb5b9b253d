//! `tidegate gen`: what Envoy has to be configured with to send exactly the descriptors that the rules wait for, so that
//! nobody writes it by hand, twice.

pub(crate) mod envoy;
pub(crate) mod istio;
pub mod plan;
pub mod source;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::generate::envoy::{BootstrapSettings, ServiceTarget};
use crate::cli::generate::istio::{Context, Mesh};
use crate::cli::generate::plan::{GatewayPlan, Wishes};
use crate::cli::generate::source::ValueSource;
use crate::cli::yaml::{in_comment, read};
use crate::cli::{Exit, Output, explain};
use crate::flag_value::{boolean, duration};
use crate::request::Bounds;
use crate::sources::settings::RuleFlags;

pub const EXAMPLES: &str = "Examples:
  tidegate gen envoy --domain edge --map api_key=header:x-api-key
  tidegate gen envoy --rules rules/ --domain edge --bootstrap --upstream 127.0.0.1:8000 > envoy.yaml
  tidegate gen istio --domain edge | kubectl apply -f -

Where values come from (--map KEY=SOURCE):
  address, masked_address, path, method, host    what Envoy knows of the request; path is without its query
  header:NAME, query:NAME                        of the request
  metadata:NAMESPACE:KEY[:KEY]                   left by an earlier filter
  cel:EXPRESSION                                 computed by Envoy
  value                                          not from the request: what the rules name
  source_cluster, destination_cluster            Envoy's clusters
Keys that say it themselves (remote_address, path, method, host, generic_key) need no --map; any other key is taken from
the header of its name.";

#[derive(Args, Debug)]
pub struct GenFlags {
    #[command(subcommand)]
    pub target: GenTarget,
}

#[derive(Subcommand, Debug)]
pub enum GenTarget {
    /// The filter, the actions and the cluster for an Envoy of your own
    #[command(after_help = EXAMPLES)]
    Envoy(EnvoyFlags),
    /// EnvoyFilters for Istio's gateways or sidecars
    #[command(after_help = EXAMPLES)]
    Istio(IstioFlags),
}

/// What every target needs.
#[derive(Args, Debug)]
pub struct PlanFlags {
    #[command(flatten)]
    pub rules: RuleFlags,

    /// The domain whose rules are to be reached
    #[arg(long)]
    pub domain: String,

    /// Where the value of a key comes from; may be given several times
    #[arg(long = "map", value_name = "KEY=SOURCE", value_parser = ValueSource::read)]
    pub maps: Vec<(String, ValueSource)>,

    /// How long Envoy waits for an answer [default: 20ms, 100ms if a rule is strict]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// Whether a request is refused when no answer comes [default: if a rule denies in an outage]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", value_parser = boolean)]
    pub failure_mode_deny: Option<bool>,

    /// How to print: YAML with comments, or JSON
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct EnvoyFlags {
    #[command(flatten)]
    pub plan: PlanFlags,

    /// Where Envoy reaches the service, as HOST:PORT or unix:/PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = ServiceTarget::read)]
    pub service: ServiceTarget,

    /// Print a whole bootstrap that runs, not only the parts that belong into one
    #[arg(long)]
    pub bootstrap: bool,

    /// The port on which the bootstrap's listener is
    #[arg(long, value_name = "PORT", default_value = "10000", requires = "bootstrap")]
    pub listen: u16,

    /// How many proxies are in front of the bootstrap's listener, whose X-Forwarded-For is believed
    #[arg(long, value_name = "COUNT", default_value = "0", requires = "bootstrap")]
    pub trusted_hops: u32,

    /// Where the bootstrap's requests go
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000", value_parser = ServiceTarget::read)]
    #[arg(requires = "bootstrap")]
    pub upstream: ServiceTarget,
}

#[derive(Args, Debug)]
pub struct IstioFlags {
    #[command(flatten)]
    pub plan: PlanFlags,

    /// Which proxies limit
    #[arg(long, value_enum, default_value = "gateway")]
    pub context: Context,

    /// The service in the mesh, as HOST:PORT
    #[arg(long, value_name = "ADDRESS", default_value = "tidegate.tidegate.svc.cluster.local:8081")]
    #[arg(value_parser = ServiceTarget::read)]
    pub service: ServiceTarget,

    /// How the EnvoyFilters are named, with -filter and -actions behind it
    #[arg(long, default_value = "tidegate")]
    pub name: String,

    /// The namespace of the EnvoyFilters [default: istio-system for gateways, default for sidecars]
    #[arg(long)]
    pub namespace: Option<String>,

    /// A label of the workload whose proxies limit; may be given several times [default: istio=ingressgateway for
    /// gateways]
    #[arg(long = "selector", value_name = "LABEL=VALUE", value_parser = label)]
    pub selector: Vec<(String, String)>,
}

fn label(typed: &str) -> Result<(String, String), String> {
    match typed.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{typed}' is no label: write LABEL=VALUE, for example app=shop")),
    }
}

pub fn run(flags: &GenFlags) -> anyhow::Result<Exit> {
    match &flags.target {
        GenTarget::Envoy(flags) => {
            let plan = plan(&flags.plan)?;
            let bootstrap = flags.bootstrap.then(|| BootstrapSettings {
                listen_port: flags.listen,
                trusted_hops: flags.trusted_hops,
                upstream: flags.upstream.clone(),
            });
            print(&flags.plan, &plan, &[envoy::document(&plan, &flags.service, bootstrap.as_ref())])
        }
        GenTarget::Istio(flags) => {
            let mesh = mesh(flags)?;
            let plan = plan(&flags.plan)?;
            print(&flags.plan, &plan, &istio::documents(&plan, &mesh))
        }
    }
}

fn plan(flags: &PlanFlags) -> anyhow::Result<GatewayPlan> {
    let ruleset = explain::load(&flags.rules)?;
    let domain = explain::domain(&ruleset, &flags.domain)?;
    let mut sources = BTreeMap::new();
    for (key, source) in &flags.maps {
        if sources.insert(key.clone(), source.clone()).is_some() {
            bail!("--map {key} is given twice: a key has one source");
        }
    }
    let wishes = Wishes { sources, timeout: flags.timeout, failure_mode_deny: flags.failure_mode_deny };
    GatewayPlan::new(domain, wishes).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow!("nothing was generated\n  {}", lines.join("\n  "))
    })
}

fn mesh(flags: &IstioFlags) -> anyhow::Result<Mesh> {
    let ServiceTarget::Tcp { host, port } = flags.service.clone() else {
        bail!("Istio's proxies reach the service through the mesh: write --service HOST:PORT");
    };
    let mut selector: BTreeMap<String, String> = flags.selector.iter().cloned().collect();
    if selector.is_empty() {
        match flags.context {
            Context::Gateway => drop(selector.insert("istio".into(), "ingressgateway".into())),
            Context::Sidecar => bail!("which sidecars? Write --selector app=NAME, with a label of their workload"),
        }
    }
    let usual = match flags.context {
        Context::Gateway => "istio-system",
        Context::Sidecar => "default",
    };
    let namespace = flags.namespace.clone().unwrap_or_else(|| usual.to_owned());
    Ok(Mesh { name: flags.name.clone(), namespace, context: flags.context, selector, host, port })
}

fn print(flags: &PlanFlags, plan: &GatewayPlan, documents: &[String]) -> anyhow::Result<Exit> {
    let mut out = std::io::stdout().lock();
    match flags.output {
        Output::Text => write!(out, "{}\n{}", preface(plan), documents.join("---\n"))?,
        Output::Json => {
            let values: Result<Vec<Value>, _> = documents.iter().map(|it| read(it).map(|read| read.value)).collect();
            let values =
                values.map_err(|(line, error)| anyhow!("what was generated is no YAML in line {line}: {error}"))?;
            match values.as_slice() {
                [value] => writeln!(out, "{value:#}")?,
                values => writeln!(out, "{:#}", json!({"apiVersion": "v1", "kind": "List", "items": values}))?,
            }
        }
    }
    Ok(Exit::Success)
}

/// What the reader should know before using it.
fn preface(plan: &GatewayPlan) -> String {
    let domain = in_comment(&plan.domain);
    let mut text = format!("# What Envoy sends for the rules of the domain {domain}, and where it takes it from:\n");
    let width = plan.sources.keys().map(String::len).max().unwrap_or(0);
    for (key, source) in &plan.sources {
        text += &format!("#   {:width$}  {}", in_comment(key), in_comment(&source.in_words()));
        if plan.guessed.contains(key) {
            text += &format!(" (a guess: --map {}=SOURCE says otherwise)", in_comment(key));
        }
        text += "\n";
    }
    let (count, usual_max) = (plan.descriptors.len(), Bounds::default().descriptors_max);
    if count > usual_max {
        text +=
            &format!("# {count} descriptors with each request: serve with TIDEGATE_MAX_DESCRIPTORS={count} or more.\n");
    }
    text += "# A request without one of the values is not sent the descriptors that need it: those rules do not limit it.\n";
    text + "# Every request costs 1. Tokens, bytes and other costs want `hits_addend` on the routes: docs/envoy.md says how.\n"
}
