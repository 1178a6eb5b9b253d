//! The objects that `kubectl` builds from the kustomizations in `k8s/`, as data.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::harness::run;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/k8s");

/// Every directory with a kustomization, by its path below `k8s/`, and what is built from it.
pub static BUILT: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    // An old kubectl gets a copy that it understands. Every other gets the same files as operators.
    let translated = (!knows_current_fields()).then(|| {
        let copy = tempfile::tempdir().unwrap();
        let ran = run(Command::new("cp").args(["-r", &format!("{ROOT}/.")]).arg(copy.path()));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        directories(copy.path(), copy.path()).iter().for_each(|name| translate(&copy.path().join(name)));
        copy
    });
    let root = translated.as_ref().map_or(Path::new(ROOT), |copy| copy.path());
    let build = |name: String| {
        let ran = run(Command::new("kubectl").arg("kustomize").arg(root.join(&name)));
        // kubectl warns of deprecated fields.
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "k8s/{name}");
        (name, ran.stdout)
    };
    directories(root, root).into_iter().map(build).collect()
});

fn directories(directory: &Path, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    if directory.join("kustomization.yaml").is_file() {
        found.push(directory.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
    }
    for entry in fs::read_dir(directory).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        found.extend(directories(&entry.path(), root));
    }
    found
}

/// Debian 12 has kubectl 1.20 with kustomize 2.0.3, which has other names for two fields.
fn knows_current_fields() -> bool {
    let ran = run(Command::new("kubectl").args(["version", "--client", "--output", "json"]));
    let version: Value = serde_json::from_str(&ran.stdout).expect("run make test, which installs kubectl");
    version["kustomizeVersion"].is_string()
}

/// Writes the old names: `bases` for directories among `resources`, `patchesStrategicMerge` for `patches` with a path.
fn translate(directory: &Path) {
    let file = directory.join("kustomization.yaml");
    let mut kustomization: Value = serde_yaml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let is_directory = |name: &Value| directory.join(name.as_str().unwrap()).is_dir();
    let (bases, files): (Vec<Value>, Vec<Value>) = list(&kustomization, "/resources").cloned().partition(is_directory);
    let patches: Vec<Value> = list(&kustomization, "/patches").map(|patch| patch["path"].clone()).collect();
    kustomization.as_object_mut().unwrap().remove("patches");
    for (field, names) in [("resources", files), ("bases", bases), ("patchesStrategicMerge", patches)] {
        kustomization[field] = json!(names);
    }
    fs::write(file, serde_yaml::to_string(&kustomization).unwrap()).unwrap();
}

/// The objects of a kustomization.
pub fn objects(name: &str) -> Vec<Value> {
    let built = BUILT.get(name).unwrap_or_else(|| panic!("no k8s/{name}"));
    serde_yaml::Deserializer::from_str(built).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The objects of a kind in a kustomization.
pub fn of_kind(name: &str, kind: &str) -> Vec<Value> {
    objects(name).into_iter().filter(|object| object["kind"] == kind).collect()
}

/// The one object of a kind in a kustomization.
pub fn the(name: &str, kind: &str) -> Value {
    let mut found = of_kind(name, kind);
    assert_eq!(found.len(), 1, "k8s/{name}: {kind}");
    found.remove(0)
}

/// The elements of a list; none if there is no list.
pub fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Whether the help of a command has a variable. For secret variables, the help shows neither the value nor `=`.
pub fn names_variable(help: &str, name: &str) -> bool {
    help.contains(&format!("[env: {name}=")) || help.contains(&format!("[env: {name}]"))
}

/// A workload and the pods that it makes.
pub struct Workload {
    /// Where it is, for messages.
    pub place: String,
    pub namespace: Value,
    pub labels: Value,
    pub spec: Value,
}

/// Every workload of every kustomization.
pub fn workloads() -> Vec<Workload> {
    BUILT.keys().flat_map(|name| workloads_of(name)).collect()
}

pub fn workloads_of(name: &str) -> Vec<Workload> {
    objects(name)
        .into_iter()
        .filter_map(|object| {
            let template = match object["kind"].as_str()? {
                "Deployment" | "Job" => object.pointer("/spec/template")?,
                "CronJob" => object.pointer("/spec/jobTemplate/spec/template")?,
                _ => return None,
            };
            Some(Workload {
                place: format!("k8s/{name}: {} {}", object["kind"], object["metadata"]["name"]),
                namespace: object["metadata"]["namespace"].clone(),
                labels: template["metadata"]["labels"].clone(),
                spec: template["spec"].clone(),
            })
        })
        .collect()
}

impl Workload {
    pub fn containers(&self) -> impl Iterator<Item = Container<'_>> {
        let all = list(&self.spec, "/initContainers").chain(list(&self.spec, "/containers"));
        all.map(|spec| Container { spec })
    }

    /// The containers of our image.
    pub fn tidegates(&self) -> impl Iterator<Item = Container<'_>> {
        self.containers().filter(|container| container.image().contains("tidegate"))
    }

    /// The container that Envoy asks.
    pub fn server(&self) -> Option<Container<'_>> {
        self.tidegates().find(|container| container.args() == ["serve"])
    }

    /// The ConfigMap or Secret behind a path in a container.
    pub fn mounted_at(&self, container: &Container<'_>, path: &str) -> Option<&Value> {
        let mount = list(container.spec, "/volumeMounts").find(|mount| mount["mountPath"] == path)?;
        list(&self.spec, "/volumes").find(|volume| volume["name"] == mount["name"])
    }
}

/// A container of a pod.
pub struct Container<'a> {
    pub spec: &'a Value,
}

impl<'a> Container<'a> {
    pub fn image(&self) -> &'a str {
        self.spec["image"].as_str().expect("every container has an image")
    }

    pub fn args(&self) -> Vec<&'a str> {
        list(self.spec, "/args").map(|arg| arg.as_str().unwrap()).collect()
    }

    pub fn variables(&self) -> BTreeSet<&'a str> {
        list(self.spec, "/env").map(|variable| variable["name"].as_str().unwrap()).collect()
    }

    /// The value of a variable; `None` if it is not in the manifest.
    pub fn variable(&self, name: &str) -> Option<&'a str> {
        list(self.spec, "/env").find(|variable| variable["name"] == name)?["value"].as_str()
    }

    /// All variables whose values are in the manifest.
    pub fn plain_variables(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        list(self.spec, "/env").filter_map(|variable| Some((variable["name"].as_str()?, variable["value"].as_str()?)))
    }

    /// The number of a port, by its name.
    pub fn port(&self, name: &Value) -> Option<u64> {
        list(self.spec, "/ports").find(|port| port["name"] == *name)?["containerPort"].as_u64()
    }

    pub fn ports(&self) -> BTreeSet<u64> {
        list(self.spec, "/ports").filter_map(|port| port["containerPort"].as_u64()).collect()
    }

    pub fn probes(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        ["startupProbe", "readinessProbe", "livenessProbe"]
            .into_iter()
            .filter_map(|probe| spec.get(probe)?.get("httpGet"))
    }
}
