//! Workloads as people write them and as the API server sends them, and a check of the results by Kubernetes' schemas.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::harness::run;

/// Kinds that have pods, each with its API version and the place of the pods in it.
pub const KINDS: [(&str, &str, &str); 6] = [
    ("Pod", "v1", ""),
    ("Deployment", "apps/v1", "/spec/template"),
    ("StatefulSet", "apps/v1", "/spec/template"),
    ("DaemonSet", "apps/v1", "/spec/template"),
    ("Job", "batch/v1", "/spec/template"),
    ("CronJob", "batch/v1", "/spec/jobTemplate/spec/template"),
];

/// A workload with an Envoy beside it.
pub fn workload(kind: &str, annotations: &Value) -> Value {
    let labels = json!({"app": "shop"});
    let is_job = kind.ends_with("Job");
    let spec = json!({
        "containers": [
            {"name": "shop", "image": "shop:1", "ports": [{"containerPort": 8080}]},
            {"name": "envoy", "image": "envoy:1", "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy"}]},
        ],
        "volumes": [{"name": "config", "configMap": {"name": "envoy"}}],
        "restartPolicy": if is_job { "Never" } else { "Always" },
    });
    let pod = json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec});
    let selector = json!({"matchLabels": labels});
    let api_version = KINDS.iter().find(|(name, _, _)| *name == kind).expect("a known kind").1;
    let (metadata, spec) = match kind {
        "Pod" => (json!({"name": "shop", "labels": labels, "annotations": annotations}), pod["spec"].clone()),
        "Job" => (json!({"name": "shop"}), json!({"template": pod})),
        "CronJob" => {
            (json!({"name": "shop"}), json!({"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": pod}}}))
        }
        "StatefulSet" => {
            (json!({"name": "shop"}), json!({"serviceName": "shop", "selector": selector, "template": pod}))
        }
        _ => (json!({"name": "shop"}), json!({"selector": selector, "template": pod})),
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
}

/// The question that the API server asks about an object.
pub fn review(object: &Value, operation: &str) -> Value {
    let kind = object["kind"].as_str().expect("a kind");
    let api_version = object["apiVersion"].as_str().expect("a version");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = format!("{}s", kind.to_lowercase());
    let kind = json!({"group": group, "version": version, "kind": kind});
    let resource = json!({"group": group, "version": version, "resource": resource});
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": "shop", "namespace": "shops", "operation": operation,
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["system:masters"]},
            "object": object, "oldObject": null, "dryRun": false,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    })
}

/// Checks objects by the schemas of Kubernetes. Unknown fields are faults.
pub fn assert_valid(objects: &[Value]) {
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..objects.len()).map(|number| directory.path().join(format!("{number}.yaml"))).collect();
    for (object, file) in objects.iter().zip(&files) {
        std::fs::write(file, serde_yaml::to_string(object).unwrap()).unwrap();
    }
    let validate = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/kubernetes-validate");
    let ran = run(Command::new(validate).arg("--strict").args(&files));
    assert_eq!(ran.code, Some(0), "{ran:?}\n{objects:#?}");
}

#[test]
fn what_is_not_valid_is_noticed() {
    assert_valid(&KINDS.map(|(kind, _, _)| workload(kind, &json!({}))));
    let mut bad = workload("Deployment", &json!({}));
    bad["spec"]["template"]["spec"]["containers"][0]["restartPolicies"] = json!("Always");
    assert!(std::panic::catch_unwind(|| assert_valid(&[bad])).is_err());
}
