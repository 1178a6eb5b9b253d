//! `tidegate inject`: puts the sidecar beside the workloads of manifests.

pub(crate) mod annotations;
mod editor;
mod layout;
pub(crate) mod manifest;
pub(crate) mod sidecar;
pub(crate) mod workload;

use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::inject::manifest::{Manifest, Rewrite};
use crate::cli::inject::sidecar::{Mode, Sidecar};
use crate::cli::inject::workload::Workload;
use crate::cli::{Exit, Output};
use crate::observe::logging::say;

pub(crate) const EXAMPLES: &str = "Examples:
  tidegate inject -f deploy.yaml | kubectl apply -f -
  kustomize build . | tidegate inject -f - --env-secret redis > all.yaml

Pods choose for themselves by annotations: tidegate.dev/inject (\"true\" or \"false\"), image, mode, rules-configmap,
env-configmap, env-secret and keys-max, each with tidegate.dev/ before it.";

/// What is injected where pods do not say otherwise.
#[derive(Args, Clone, Debug)]
pub struct SidecarFlags {
    /// The image of the sidecar
    #[arg(long, value_name = "IMAGE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    #[arg(default_value = concat!("tidegate:", env!("CARGO_PKG_VERSION")))]
    pub image: String,

    /// How the sidecar is run
    #[arg(long, value_enum, default_value = "native")]
    pub mode: Mode,

    /// The ConfigMap that has the rule files, in the namespace of the pod
    #[arg(long, value_name = "NAME", default_value = "tidegate-rules", value_parser = annotations::object_name)]
    pub rules_configmap: String,

    /// A ConfigMap with settings of the sidecar as environment
    #[arg(long, value_name = "NAME", value_parser = annotations::object_name)]
    pub env_configmap: Option<String>,

    /// A Secret with settings of the sidecar as environment, such as REDIS_URL
    #[arg(long, value_name = "NAME", value_parser = annotations::object_name)]
    pub env_secret: Option<String>,

    /// How many keys the sidecar holds; its memory is limited to what they usually take, and where they take more, it holds
    /// fewer
    #[arg(long, value_name = "COUNT", default_value = "200000", value_parser = annotations::keys_max)]
    pub keys_max: u64,
}

impl SidecarFlags {
    pub fn sidecar(&self) -> Sidecar {
        Sidecar {
            image: self.image.clone(),
            mode: self.mode,
            rules: self.rules_configmap.clone(),
            env_configmap: self.env_configmap.clone(),
            env_secret: self.env_secret.clone(),
            keys_max: self.keys_max,
        }
    }
}

#[derive(Args, Debug)]
pub struct InjectFlags {
    /// A file of manifests, - for standard input; may be given several times
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    pub sidecar: SidecarFlags,

    /// How to print: YAML as it was written, or JSON
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Nothing is printed unless everything could be injected.
pub(crate) fn run(flags: &InjectFlags) -> anyhow::Result<Exit> {
    let sidecar = flags.sidecar.sidecar();
    let mut manifests = Vec::new();
    let mut reports = Vec::new();
    for file in &flags.files {
        let name = file.display();
        let text = text(file).with_context(|| format!("{name} can't be read"))?;
        let mut documents = manifest::read(&text).with_context(|| name.to_string())?;
        for document in &mut documents {
            reports.extend(inject(document, &sidecar).with_context(|| name.to_string())?);
        }
        // A further file begins a document of its own.
        if let (Some(first), false) = (documents.first_mut(), manifests.is_empty()) {
            first.separator = "---\n".to_owned();
        }
        manifests.extend(documents);
    }
    // A pipeline may have manifests without workloads: they pass as they are.
    if reports.is_empty() {
        reports.push(
            "nothing to inject into: there is no Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or CronJob in it"
                .to_owned(),
        );
    }
    print(flags.output, &manifests)?;
    reports.iter().for_each(|report| say(&format!("tidegate: {report}")));
    Ok(Exit::Success)
}

fn text(file: &PathBuf) -> std::io::Result<String> {
    if file.as_os_str() != "-" {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

/// Injects the sidecar into each workload of a document, and says what became of it.
fn inject(document: &mut Manifest, usual: &Sidecar) -> anyhow::Result<Vec<String>> {
    let value = document.value.clone();
    let mut reports = Vec::new();
    for workload in Workload::all(&value) {
        let title = workload.title();
        let annotations = workload.annotations();
        if annotations::wish(annotations).context(title.clone())? == Some(false) {
            reports.push(format!("{title}: left alone, as its annotation says"));
            continue;
        }
        let sidecar = usual.for_pod(annotations).context(title.clone())?;
        let additions = workload.additions(&sidecar)?;
        if additions.is_empty() {
            reports.push(format!("{title}: has its sidecar already"));
            continue;
        }
        reports.push(match document.add(&additions) {
            Rewrite::InPlace => format!("{title}: injected"),
            Rewrite::Anew => {
                format!("{title}: injected; its document had to be written anew, so that its comments are gone")
            }
        });
    }
    Ok(reports)
}

fn print(output: Output, manifests: &[Manifest]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if output == Output::Json {
        let items: Vec<&Value> = manifests.iter().map(|it| &it.value).filter(|value| !value.is_null()).collect();
        return writeln!(out, "{:#}", json!({"apiVersion": "v1", "kind": "List", "items": items}));
    }
    for manifest in manifests {
        write!(out, "{}{}", manifest.separator, manifest.text)?;
        if !manifest.text.is_empty() && !manifest.text.ends_with('\n') {
            writeln!(out)?;
        }
    }
    out.flush()
}
