//! `tidegate inject`: every kind of workload gets its sidecar once, files stay what they were otherwise, and the sidecar is
//! one that starts.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Process, Ran, answer, ask_one, in_short, run, tidegate};
use crate::kubernetes_objects::{KINDS, assert_valid, workload};

fn injected(file: &str, flags: &[&str]) -> Ran {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.yaml");
    std::fs::write(&path, file).unwrap();
    run(tidegate(&["inject", "-f"]).arg(&path).args(flags))
}

fn documents(yaml: &str) -> Vec<Value> {
    let documents =
        serde_yaml::Deserializer::from_str(yaml).map(|document| serde::Deserialize::deserialize(document).unwrap());
    documents.filter(|document: &Value| !document.is_null()).collect()
}

fn sidecars(document: &Value, pod: &str, list: &str) -> usize {
    let containers = document.pointer(&format!("{pod}/spec/{list}")).and_then(Value::as_array);
    containers.into_iter().flatten().filter(|container| container["name"] == "tidegate").count()
}

#[test]
fn every_kind_of_workload_gets_its_sidecar_once() {
    let all = KINDS.map(|(kind, _, _)| serde_yaml::to_string(&workload(kind, &json!({}))).unwrap()).join("---\n");
    let once = injected(&all, &["--env-secret", "redis", "--env-configmap", "settings"]);
    assert_eq!(once.code, Some(0), "{once:?}");
    let results = documents(&once.stdout);
    assert_valid(&results);
    for ((kind, _, pod), result) in KINDS.iter().zip(&results) {
        assert_eq!((sidecars(result, pod, "initContainers"), sidecars(result, pod, "containers")), (1, 0), "{kind}");
        let sidecar = &result.pointer(pod).unwrap()["spec"]["initContainers"][0];
        assert_eq!(sidecar["restartPolicy"], "Always", "{kind}: a Job finishes all the same");
        assert_eq!(
            sidecar["envFrom"],
            json!([{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "redis"}}])
        );
        assert!(once.stderr.contains(&format!("tidegate: {kind} shop: injected\n")), "{}", once.stderr);
    }
    let twice = injected(&once.stdout, &[]);
    assert_eq!((twice.code, &twice.stdout), (Some(0), &once.stdout), "a second pass changes nothing");
    assert_eq!(twice.stderr.matches("has its sidecar already").count(), KINDS.len(), "{}", twice.stderr);
    let json: Value = serde_json::from_str(&injected(&all, &["--output", "json"]).stdout).unwrap();
    assert_eq!(json["items"].as_array().map(Vec::len), Some(KINDS.len()));
    let list = serde_yaml::to_string(&json).unwrap();
    assert_eq!(
        injected(&list, &[]).stderr.matches("has its sidecar already").count(),
        KINDS.len(),
        "a list is looked into"
    );
}

#[test]
fn a_plain_sidecar_is_one_more_container_but_not_of_jobs() {
    let deployment = serde_yaml::to_string(&workload("Deployment", &json!({}))).unwrap();
    let ran = injected(&deployment, &["--mode", "plain", "--image", "mine:2"]);
    let results = documents(&ran.stdout);
    assert_valid(&results);
    assert_eq!(sidecars(&results[0], "/spec/template", "containers"), 1);
    assert_eq!(results[0]["spec"]["template"]["spec"]["containers"][2]["image"], "mine:2");
    for kind in ["Job", "CronJob"] {
        let ran = injected(&serde_yaml::to_string(&workload(kind, &json!({}))).unwrap(), &["--mode", "plain"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
        assert!(ran.stderr.contains("would never finish with a plain sidecar"), "{}", ran.stderr);
    }
}

#[test]
fn what_is_not_changed_stays_as_it_was_written() {
    let file = "\
# Everything of the shop.
apiVersion: v1
kind: Service   # left alone
metadata: {name: shop}
---
# The deployment.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: shop
spec:
  replicas: 2   # two of them
  template:
    spec:
      # What it runs:
      containers:
      - name: shop
        image: 'shop:1'   # pinned
      # No volumes so far.
      terminationGracePeriodSeconds: 30
";
    let ran = injected(file, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut added = ran.stdout.lines();
    for line in file.lines() {
        assert!(added.any(|other| other == line), "'{line}' is gone, or elsewhere:\n{}", ran.stdout);
    }
    assert!(ran.stdout.contains("\n        volumeMounts:\n        - mountPath: /run/tidegate\n"), "{}", ran.stdout);
}

#[test]
fn standard_input_annotations_and_mistakes() {
    let mut child = tidegate(&["inject", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pod = workload("Pod", &json!({"tidegate.dev/inject": "false"}));
    child.stdin.take().unwrap().write_all(serde_yaml::to_string(&pod).unwrap().as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(documents(&String::from_utf8(ran.stdout).unwrap()), [pod]);
    assert!(String::from_utf8(ran.stderr).unwrap().contains("left alone, as its annotation says"));

    let annotated = |name: &str, value: &str| serde_yaml::to_string(&workload("Pod", &json!({name: value}))).unwrap();
    for (file, part) in [
        ("kind: Service\n".to_owned(), "nothing to inject into"),
        ("kind: Pod\nmetadata: {name: p}\n".to_owned(), "Pod 'p' has no spec"),
        ("kind: Pod\n---\n{".to_owned(), "document 2, which begins in line 3, is not YAML"),
        (
            annotated("tidegate.dev/mode", "init"),
            "Pod shop: the annotation tidegate.dev/mode is 'init': write native or plain",
        ),
        (annotated("tidegate.dev/injected", "true"), "is none of tidegate.dev/inject"),
    ] {
        let ran = injected(&file, &[]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let ran = run(&mut tidegate(&["inject", "-f", "/nowhere.yaml"]));
    assert!(ran.code == Some(1) && ran.stderr.contains("/nowhere.yaml can't be read"), "{ran:?}");
}

/// The container's own arguments and environment, with its directories and ports moved here.
#[tokio::test]
async fn the_sidecar_serves_on_its_socket() {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules");
    std::fs::create_dir(&rules).unwrap();
    let text = "{domain: d, descriptors: [{key: a, rate_limit: {requests_per_unit: 1, unit: year}}]}";
    std::fs::write(rules.join("d.yaml"), text).unwrap();
    let ran = injected(&serde_yaml::to_string(&workload("Pod", &json!({}))).unwrap(), &[]);
    let sidecar = documents(&ran.stdout)[0]["spec"]["initContainers"][0].clone();
    let [here, rules] = [directory.path(), &rules].map(|path| path.to_str().unwrap());
    let args = sidecar["args"].as_array().unwrap().iter().map(|arg| {
        let arg = arg.as_str().unwrap().replace("/run/tidegate", here).replace("/etc/tidegate/rules", rules);
        if ["18080", "16070"].contains(&arg.as_str()) { "0".to_owned() } else { arg }
    });
    let mut command = tidegate(&[]);
    command.args(args).args(["--host", "127.0.0.1"]);
    for variable in sidecar["env"].as_array().unwrap() {
        command.env(variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap());
    }
    let mut process = Process::start(command);
    let line = process.line_with("tidegate: serving");
    assert!(line.contains("tidegate.sock"), "{line}");
    let socket = format!("unix://{here}/tidegate.sock");
    let channel = tonic::transport::Endpoint::try_from(socket).unwrap().connect().await.unwrap();
    let mut client =
        envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient::new(channel);
    assert!(in_short(&answer(&mut client, ask_one("a=x")).await).starts_with("OK"));
    assert!(in_short(&answer(&mut client, ask_one("a=x")).await).starts_with("OVER"));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(format!("{here}/tidegate.sock")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o666, "containers run as different users");
}
