//! What has to change in a workload so that the sidecar is beside it: a list of additions, which a file and the webhook
//! each apply in their own way.
//!
//! Documents are looked at as they are, not through types: fields that a newer Kubernetes has must come out as they went
//! in. Only what is added is typed.

use k8s_openapi::api::core::v1::Volume;
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::cli::inject::sidecar::{CONTAINER, Mode, SOCKET_VOLUME, Sidecar, workload_mount};

/// On the way to a place in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Key(&'static str),
    Index(usize),
}

/// Something to add. Nothing is ever taken away or replaced.
#[derive(Clone, Debug, PartialEq)]
pub enum Addition {
    /// A field that is not there, in the map at the path.
    Field { at: Vec<Step>, key: &'static str, value: Value },
    /// One more element of the list at the path.
    Element { at: Vec<Step>, value: Value },
}

/// Why a document can't be changed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WorkloadError {
    #[error("{kind} '{name}' has no {what}: is it complete?")]
    Incomplete { kind: String, name: String, what: &'static str },
    #[error("{kind} '{name}': {what} is not a list")]
    NotAList { kind: String, name: String, what: String },
    #[error("{kind} '{name}' has a volume '{volume}' that is another one: rename it")]
    VolumeTaken { kind: String, name: String, volume: String },
    #[error(
        "{kind} '{name}' would never finish with a plain sidecar, which goes on: inject a native one (Kubernetes 1.29 and \
         later)"
    )]
    NeverFinishes { kind: String, name: String },
}

/// A document that has pods in it.
#[derive(Debug)]
pub struct Workload<'a> {
    kind: &'a str,
    name: String,
    document: &'a Value,
    /// Where the workload is in a list.
    outer: Vec<Step>,
    /// Where the pod's spec is in the workload.
    spec: Vec<Step>,
}

impl<'a> Workload<'a> {
    /// The workloads of a document: none, one, or those of a list.
    pub fn all(document: &'a Value) -> Vec<Workload<'a>> {
        let items = document.get("items").and_then(Value::as_array);
        match items.filter(|_| document.get("kind").and_then(Value::as_str) == Some("List")) {
            Some(items) => {
                let item = |(index, item)| Workload::below(vec![Step::Key("items"), Step::Index(index)], item);
                items.iter().enumerate().filter_map(item).collect()
            }
            None => Workload::below(Vec::new(), document).into_iter().collect(),
        }
    }

    /// `None` for documents without pods.
    pub fn of(document: &'a Value) -> Option<Workload<'a>> {
        Workload::below(Vec::new(), document)
    }

    fn below(outer: Vec<Step>, document: &'a Value) -> Option<Workload<'a>> {
        use Step::Key;
        let kind = document.get("kind")?.as_str()?;
        let spec = match kind {
            "Pod" => vec![Key("spec")],
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
                vec![Key("spec"), Key("template"), Key("spec")]
            }
            "CronJob" => ["spec", "jobTemplate", "spec", "template", "spec"].map(Key).to_vec(),
            _ => return None,
        };
        let metadata = document.get("metadata");
        let name = ["name", "generateName"].iter().find_map(|field| metadata?.get(field)?.as_str());
        Some(Workload { kind, name: name.unwrap_or_default().to_owned(), document, outer, spec })
    }

    /// What people call it.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind, self.name).trim_end().to_owned()
    }

    /// The annotations of its pods.
    pub fn annotations(&self) -> Option<&'a Map<String, Value>> {
        let pod = &self.spec[..self.spec.len() - 1];
        at(self.document, pod)?.get("metadata")?.get("annotations")?.as_object()
    }

    /// What is missing, nothing if the sidecar is there already.
    pub fn additions(&self, sidecar: &Sidecar) -> Result<Vec<Addition>, WorkloadError> {
        let (kind, name) = (self.kind.to_owned(), self.name.clone());
        let Some(spec) = at(self.document, &self.spec).and_then(Value::as_object) else {
            return Err(WorkloadError::Incomplete { kind, name, what: "spec of its pods" });
        };
        let (containers, volumes) = (self.list(spec, "containers")?, self.list(spec, "volumes")?);
        let init_containers = self.list(spec, "initContainers")?;
        if containers.is_empty() {
            return Err(WorkloadError::Incomplete { kind, name, what: "containers" });
        }
        if sidecar.mode == Mode::Plain && self.finishes() {
            return Err(WorkloadError::NeverFinishes { kind, name });
        }
        let mut additions = Vec::new();
        let is_sidecar = |container: &&Value| container.get("name").and_then(Value::as_str) == Some(CONTAINER);
        if !containers.iter().chain(init_containers).any(|container| is_sidecar(&container)) {
            let (field, there) = match sidecar.mode {
                Mode::Native => ("initContainers", init_containers),
                Mode::Plain => ("containers", containers),
            };
            additions.extend(self.added(&[], field, there, &[sidecar.container()]));
        }
        let mut missing = Vec::new();
        for volume in sidecar.volumes() {
            let named = volumes.iter().find(|other| other.get("name").and_then(Value::as_str) == Some(&*volume.name));
            match named {
                None => missing.push(volume),
                Some(other) if is_same_source(other, &volume) => {}
                Some(_) => return Err(WorkloadError::VolumeTaken { kind, name, volume: volume.name }),
            }
        }
        additions.extend(self.added(&[], "volumes", volumes, &missing));
        for (index, container) in containers.iter().enumerate().filter(|(_, container)| !is_sidecar(container)) {
            let Some(fields) = container.as_object() else { continue };
            let mounts = self.list(fields, "volumeMounts")?;
            if mounts.iter().any(|mount| mount.get("name").and_then(Value::as_str) == Some(SOCKET_VOLUME)) {
                continue;
            }
            let container = [Step::Key("containers"), Step::Index(index)];
            additions.extend(self.added(&container, "volumeMounts", mounts, &[workload_mount()]));
        }
        Ok(additions)
    }

    /// Whether it is done when its containers are. A pod says so by whom it belongs to.
    fn finishes(&self) -> bool {
        let owners = self.document.get("metadata").and_then(|metadata| metadata.get("ownerReferences"));
        let mut owners = owners.and_then(Value::as_array).into_iter().flatten();
        let is_of_job = owners.any(|owner| owner.get("kind").and_then(Value::as_str) == Some("Job"));
        matches!(self.kind, "Job" | "CronJob") || (self.kind == "Pod" && is_of_job)
    }

    /// A list that may not be there.
    fn list(&self, fields: &'a Map<String, Value>, field: &str) -> Result<&'a [Value], WorkloadError> {
        match fields.get(field) {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => {
                let (kind, name) = (self.kind.to_owned(), self.name.clone());
                Err(WorkloadError::NotAList { kind, name, what: field.to_owned() })
            }
        }
    }

    /// Elements of a list below the pod's spec, with the list if it is not there or has nothing in it.
    fn added<T: Serialize>(
        &self,
        below: &[Step],
        field: &'static str,
        there: &[Value],
        elements: &[T],
    ) -> Vec<Addition> {
        let json = |element: &T| serde_json::to_value(element).unwrap_or_default();
        let values: Vec<Value> = elements.iter().map(json).collect();
        let at = [&self.outer, &self.spec, below].concat();
        match (values.is_empty(), there.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => vec![Addition::Field { at, key: field, value: Value::Array(values) }],
            (false, false) => {
                let list = [&at[..], &[Step::Key(field)]].concat();
                values.into_iter().map(|value| Addition::Element { at: list.clone(), value }).collect()
            }
        }
    }
}

/// The same kind of volume; which ConfigMap it is, is the workload's own affair.
fn is_same_source(other: &Value, ours: &Volume) -> bool {
    match ours.empty_dir {
        Some(_) => other.get("emptyDir").is_some(),
        None => other.get("configMap").is_some(),
    }
}

fn at<'a>(document: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    })
}

impl Addition {
    /// A step of a JSON patch.
    pub fn to_patch(&self) -> Value {
        let (at, last, value) = match self {
            Addition::Field { at, key, value } => (at, *key, value),
            Addition::Element { at, value } => (at, "-", value),
        };
        let step = |step: &Step| match step {
            Step::Key(key) => format!("/{key}"),
            Step::Index(index) => format!("/{index}"),
        };
        let path = at.iter().map(step).collect::<String>();
        serde_json::json!({"op": "add", "path": format!("{path}/{last}"), "value": value})
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sidecar(mode: Mode) -> Sidecar {
        Sidecar { image: "tidegate:1".into(), mode, rules: "rules".into(), env_configmap: None, env_secret: None }
    }

    fn deployment(pod: &Value) -> Value {
        json!({"kind": "Deployment", "metadata": {"name": "shop"}, "spec": {"template": {"spec": pod}}})
    }

    fn injected(document: &Value, mode: Mode) -> Value {
        let additions = Workload::of(document).unwrap().additions(&sidecar(mode)).unwrap();
        let steps: Vec<Value> = additions.iter().map(Addition::to_patch).collect();
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(steps)).unwrap();
        let mut document = document.clone();
        json_patch::patch(&mut document, &patch).unwrap();
        document
    }

    #[test]
    fn what_is_missing_is_added_once_and_what_is_there_stays() {
        let pod = json!({
            "containers": [
                {"name": "shop", "image": "shop", "fieldOfTheFuture": 1},
                {"name": "envoy", "volumeMounts": [{"name": "config", "mountPath": "/c"}]},
            ],
            "volumes": [{"name": "config", "configMap": {"name": "c"}}],
        });
        for (mode, list, number) in [(Mode::Native, "initContainers", 0), (Mode::Plain, "containers", 2)] {
            let once = injected(&deployment(&pod), mode);
            let spec = &once["spec"]["template"]["spec"];
            assert_eq!(spec[list][number]["name"], "tidegate", "{spec:#}");
            assert_eq!(spec[list][number]["restartPolicy"] == "Always", mode == Mode::Native);
            assert_eq!(spec["containers"][0]["fieldOfTheFuture"], 1);
            assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], "/run/tidegate");
            assert_eq!(spec["containers"][1]["volumeMounts"][1]["name"], "tidegate-socket");
            let names: Vec<_> = spec["volumes"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
            assert_eq!(names, ["config", "tidegate-socket", "tidegate-rules"]);
            assert_eq!(injected(&once, mode), once, "a second pass changes nothing");
        }
    }

    #[test]
    fn what_can_not_be_injected_says_why() {
        let error = |document: Value, mode: Mode| {
            Workload::of(&document).unwrap().additions(&sidecar(mode)).unwrap_err().to_string()
        };
        let containers = json!([{"name": "a"}]);
        let bad = [
            (json!({"kind": "Pod", "metadata": {"name": "p"}}), "Pod 'p' has no spec"),
            (deployment(&json!({"containers": []})), "Deployment 'shop' has no containers"),
            (deployment(&json!({"containers": "a"})), "containers is not a list"),
            (
                deployment(&json!({"containers": containers, "volumes": [{"name": "tidegate-rules", "secret": {}}]})),
                "has a volume 'tidegate-rules' that is another one",
            ),
        ];
        for (document, part) in bad {
            let said = error(document, Mode::Native);
            assert!(said.contains(part), "{said}");
        }
        let job = json!({"kind": "Job", "spec": {"template": {"spec": {"containers": containers}}}});
        assert!(error(job, Mode::Plain).contains("would never finish"));
        assert!(Workload::of(&json!({"kind": "Service"})).is_none());
    }
}
