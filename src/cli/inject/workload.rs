//! What has to change in a workload so that the sidecar is beside it: a list of additions. A file and the webhook each
//! apply them in their own way.
//!
//! Documents are looked at as they are, not through types: fields that a newer Kubernetes has must come out as they went
//! in.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::cli::inject::sidecar::{CONTAINER, Mode, SOCKET_DIRECTORY, SOCKET_VOLUME, Sidecar, workload_mount};
use crate::cli::yaml::in_comment;

/// A step on the way to a place in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathPart {
    Key(&'static str),
    Index(usize),
}

/// Something to add. Nothing is ever taken away or replaced.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Addition {
    /// A field that is not there, in the map at the path.
    Field { at: Vec<PathPart>, key: &'static str, value: Value },
    /// One more element of the list at the path, behind the others or before them.
    Element { at: Vec<PathPart>, value: Value, is_first: bool },
}

/// Why a document can't be changed.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum WorkloadError {
    #[error("{kind} '{name}' has no {what}: is it complete?")]
    Incomplete { kind: String, name: String, what: &'static str },
    #[error("{kind} '{name}': {what} is not a list")]
    NotAList { kind: String, name: String, what: String },
    #[error("{kind} '{name}' has a container that is not a map: is its indentation right?")]
    NotAContainer { kind: String, name: String },
    #[error("{kind} '{name}' has a container '{CONTAINER}' that is another one: rename it")]
    ContainerTaken { kind: String, name: String },
    #[error(
        "{kind} '{name}' has something else at {SOCKET_DIRECTORY} in its container '{container}': mount it elsewhere"
    )]
    PathTaken { kind: String, name: String, container: String },
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
pub(crate) struct Workload<'a> {
    kind: &'a str,
    name: String,
    document: &'a Value,
    /// Where the workload is in the document: empty, unless it is in a list.
    outer: Vec<PathPart>,
    /// Where the pod's spec is in the workload.
    spec: Vec<PathPart>,
}

impl<'a> Workload<'a> {
    /// The workloads of a document: none, one, or those of a list.
    pub(crate) fn all(document: &'a Value) -> Vec<Workload<'a>> {
        let mut found = Vec::new();
        Workload::collect(Vec::new(), document, &mut found);
        found
    }

    fn collect(outer: Vec<PathPart>, document: &'a Value, found: &mut Vec<Workload<'a>>) {
        let is_list = document.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
        match document.get("items").and_then(Value::as_array).filter(|_| is_list) {
            Some(items) => {
                for (index, item) in items.iter().enumerate() {
                    let outer = [&outer[..], &[PathPart::Key("items"), PathPart::Index(index)]].concat();
                    Workload::collect(outer, item, found);
                }
            }
            None => found.extend(Workload::below(outer, document)),
        }
    }

    /// `None` for documents without pods.
    pub(crate) fn of(document: &'a Value) -> Option<Workload<'a>> {
        Workload::below(Vec::new(), document)
    }

    fn below(outer: Vec<PathPart>, document: &'a Value) -> Option<Workload<'a>> {
        use PathPart::Key;
        let kind = document.get("kind")?.as_str()?;
        let spec = match kind {
            "Pod" => vec![Key("spec")],
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
                vec![Key("spec"), Key("template"), Key("spec")]
            }
            "CronJob" => ["spec", "jobTemplate", "spec", "template", "spec"].map(Key).to_vec(),
            _ => return None,
        };
        let group = match kind {
            "Pod" | "ReplicationController" => "",
            "Job" | "CronJob" => "batch",
            _ => "apps",
        };
        // Other API groups use the same names for things that are built differently.
        let version = document.get("apiVersion").and_then(Value::as_str);
        if version.is_some_and(|version| version.split_once('/').map_or("", |(group, _)| group) != group) {
            return None;
        }
        let metadata = document.get("metadata");
        let name = ["name", "generateName"].iter().find_map(|field| metadata?.get(field)?.as_str());
        Some(Workload { kind, name: name.unwrap_or_default().to_owned(), document, outer, spec })
    }

    /// What people call it, fit for a comment.
    pub(crate) fn title(&self) -> String {
        in_comment(format!("{} {}", self.kind, self.name).trim_end())
    }

    /// The annotations of its pods.
    pub(crate) fn annotations(&self) -> Option<&'a Map<String, Value>> {
        let pod = &self.spec[..self.spec.len() - 1];
        value_at(self.document, pod)?.get("metadata")?.get("annotations")?.as_object()
    }

    /// What has to be added; nothing if the sidecar is there already.
    pub(crate) fn additions(&self, sidecar: &Sidecar) -> Result<Vec<Addition>, WorkloadError> {
        let (kind, name) = (self.kind.to_owned(), self.name.clone());
        let Some(spec) = value_at(self.document, &self.spec).and_then(Value::as_object) else {
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
        let is_sidecar = |container: &&Value| name_of(container) == Some(CONTAINER);
        match containers.iter().chain(init_containers).find(is_sidecar) {
            Some(other) if !mounts_socket(other) => return Err(WorkloadError::ContainerTaken { kind, name }),
            Some(_) => {}
            None => {
                // Before other sidecars, one of which may be Envoy: they start in their order.
                let (field, there, is_first) = match sidecar.mode {
                    Mode::Native => ("initContainers", init_containers, true),
                    Mode::Plain => ("containers", containers, false),
                };
                additions.extend(self.added(&[], field, there, vec![sidecar.container()], is_first));
            }
        }
        let mut missing = Vec::new();
        for volume in sidecar.volumes() {
            match volumes.iter().find(|other| name_of(other) == name_of(&volume)) {
                None => missing.push(volume),
                Some(other) if is_same_source(other, &volume) => {}
                Some(_) => {
                    let volume = name_of(&volume).unwrap_or_default().to_owned();
                    return Err(WorkloadError::VolumeTaken { kind, name, volume });
                }
            }
        }
        // Mounts come before the list gets another first element, so that indices still fit.
        let mut mounts = Vec::new();
        for (list, field) in [(containers, "containers"), (init_containers, "initContainers")] {
            for (index, container) in list.iter().enumerate().filter(|(_, container)| !is_sidecar(container)) {
                // Init containers get the socket only if they go on: the others end before a plain sidecar listens.
                if field == "containers" || container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
                    mounts.extend(self.mount([PathPart::Key(field), PathPart::Index(index)], container)?);
                }
            }
        }
        mounts.extend(self.added(&[], "volumes", volumes, missing, false));
        mounts.extend(additions);
        Ok(mounts)
    }

    /// Mounts the socket in a container, if it is not there.
    fn mount(&self, at: [PathPart; 2], container: &'a Value) -> Result<Vec<Addition>, WorkloadError> {
        let (kind, name) = (self.kind.to_owned(), self.name.clone());
        let Some(fields) = container.as_object() else { return Err(WorkloadError::NotAContainer { kind, name }) };
        if mounts_socket(container) {
            return Ok(Vec::new());
        }
        let mounts = self.list(fields, "volumeMounts")?;
        let path = |mount: &Value| {
            mount.get("mountPath").and_then(Value::as_str).map(|path| path.trim_end_matches('/') == SOCKET_DIRECTORY)
        };
        if mounts.iter().any(|mount| path(mount) == Some(true)) {
            let container = name_of(container).unwrap_or_default().to_owned();
            return Err(WorkloadError::PathTaken { kind, name, container });
        }
        Ok(self.added(&at, "volumeMounts", mounts, vec![workload_mount()], false))
    }

    /// Whether the workload is done when its containers are. A pod is if it belongs to a Job, or is not always
    /// restarted.
    fn finishes(&self) -> bool {
        let owners = self.document.get("metadata").and_then(|metadata| metadata.get("ownerReferences"));
        let mut owners = owners.and_then(Value::as_array).into_iter().flatten();
        let is_of_job = owners.any(|owner| owner.get("kind").and_then(Value::as_str) == Some("Job"));
        let policy =
            value_at(self.document, &self.spec).and_then(|spec| spec.get("restartPolicy")).and_then(Value::as_str);
        let ends = policy.is_some_and(|policy| policy != "Always");
        matches!(self.kind, "Job" | "CronJob") || (self.kind == "Pod" && (is_of_job || ends))
    }

    /// A list field; empty if it is not there.
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

    /// Adds elements to a list below the pod's spec, or the list with them if it is missing or empty.
    fn added(
        &self,
        below: &[PathPart],
        field: &'static str,
        there: &[Value],
        elements: Vec<Value>,
        is_first: bool,
    ) -> Vec<Addition> {
        let at = [&self.outer, &self.spec, below].concat();
        match (elements.is_empty(), there.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => vec![Addition::Field { at, key: field, value: Value::Array(elements) }],
            (false, false) => {
                let list = [&at[..], &[PathPart::Key(field)]].concat();
                elements.into_iter().map(|value| Addition::Element { at: list.clone(), value, is_first }).collect()
            }
        }
    }
}

/// Whether two volumes are of one kind. Which ConfigMap it is, is up to the workload.
fn is_same_source(other: &Value, ours: &Value) -> bool {
    ["emptyDir", "configMap"].iter().any(|source| ours.get(source).is_some() && other.get(source).is_some())
}

/// The name of a container, a volume or a mount.
fn name_of(value: &Value) -> Option<&str> {
    value.get("name").and_then(Value::as_str)
}

fn mounts_socket(container: &Value) -> bool {
    let mounts = container.get("volumeMounts").and_then(Value::as_array);
    mounts.into_iter().flatten().any(|mount| name_of(mount) == Some(SOCKET_VOLUME))
}

pub(crate) fn value_at<'a>(document: &'a Value, path: &[PathPart]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, step| match step {
        PathPart::Key(key) => value.get(key),
        PathPart::Index(index) => value.get(index),
    })
}

impl Addition {
    /// Makes the addition; a document that has no such place stays as it is.
    pub(crate) fn apply(&self, document: &mut Value) {
        let (Addition::Field { at, .. } | Addition::Element { at, .. }) = self;
        let place = at.iter().try_fold(document, |value, step| match step {
            PathPart::Key(key) => value.get_mut(key),
            PathPart::Index(index) => value.get_mut(index),
        });
        match (place, self) {
            (Some(Value::Object(fields)), Addition::Field { key, value, .. }) => {
                fields.insert((*key).to_owned(), value.clone());
            }
            (Some(Value::Array(list)), Addition::Element { value, is_first, .. }) => {
                list.insert(if *is_first { 0 } else { list.len() }, value.clone());
            }
            _ => {}
        }
    }

    /// The addition as a step of a JSON patch.
    pub(crate) fn to_patch(&self) -> Value {
        let (at, last, value) = match self {
            Addition::Field { at, key, value } => (at, *key, value),
            Addition::Element { at, value, is_first } => (at, if *is_first { "0" } else { "-" }, value),
        };
        let step = |step: &PathPart| match step {
            PathPart::Key(key) => format!("/{key}"),
            PathPart::Index(index) => format!("/{index}"),
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
        Sidecar {
            image: "tidegate:1".into(),
            mode,
            rules: "rules".into(),
            env_configmap: None,
            env_secret: None,
            keys_max: 1,
        }
    }

    fn deployment(pod: &Value) -> Value {
        json!({"kind": "Deployment", "metadata": {"name": "shop"}, "spec": {"template": {"spec": pod}}})
    }

    fn injected(document: &Value, mode: Mode) -> Value {
        let additions = Workload::of(document).unwrap().additions(&sidecar(mode)).unwrap();
        let mut document = document.clone();
        additions.iter().for_each(|addition| addition.apply(&mut document));
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
            (deployment(&json!({"containers": ["a"]})), "has a container that is not a map"),
            (
                deployment(&json!({"containers": [{"name": "tidegate"}]})),
                "has a container 'tidegate' that is another one",
            ),
            (
                deployment(
                    &json!({"containers": [{"name": "c", "volumeMounts": [{"name": "x", "mountPath": "/run/tidegate/"}]}]}),
                ),
                "has something else at /run/tidegate in its container 'c'",
            ),
        ];
        for (document, part) in bad {
            let said = error(document, Mode::Native);
            assert!(said.contains(part), "{said}");
        }
        let job = json!({"kind": "Job", "spec": {"template": {"spec": {"containers": containers}}}});
        assert!(error(job, Mode::Plain).contains("would never finish"));
        let pod = json!({"kind": "Pod", "spec": {"restartPolicy": "Never", "containers": containers}});
        assert!(error(pod, Mode::Plain).contains("would never finish"));
        assert!(Workload::of(&json!({"kind": "Service"})).is_none());
        assert!(Workload::of(&json!({"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1"})).is_none());
    }

    #[test]
    fn an_addition_is_a_step_of_a_patch() {
        let at = vec![PathPart::Key("spec"), PathPart::Key("containers"), PathPart::Index(1)];
        let patch = |path: &str| json!({"op": "add", "path": path, "value": [1]});
        let field = Addition::Field { at: at.clone(), key: "ports", value: json!([1]) };
        assert_eq!(field.to_patch(), patch("/spec/containers/1/ports"));
        for (is_first, path) in [(true, "/spec/containers/1/0"), (false, "/spec/containers/1/-")] {
            let element = Addition::Element { at: at.clone(), value: json!([1]), is_first };
            assert_eq!(element.to_patch(), patch(path));
        }
    }

    #[test]
    fn another_sidecar_finds_the_socket_and_starts_later() {
        let pod = json!({
            "initContainers": [{"name": "migrate"}, {"name": "envoy", "restartPolicy": "Always"}],
            "containers": [{"name": "shop"}],
        });
        let once = injected(&deployment(&pod), Mode::Native);
        let spec = &once["spec"]["template"]["spec"];
        let names: Vec<_> = spec["initContainers"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["tidegate", "migrate", "envoy"]);
        assert_eq!(spec["initContainers"][1]["volumeMounts"], Value::Null);
        assert_eq!(spec["initContainers"][2]["volumeMounts"][0]["mountPath"], "/run/tidegate");
        assert_eq!(injected(&once, Mode::Native), once);
    }
}
