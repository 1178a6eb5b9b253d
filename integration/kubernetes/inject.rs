//! `tidegate inject`: every kind of workload gets its sidecar once, files stay what they were otherwise, and the sidecar is
//! one that starts.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::harness::{Process, Ran, answer, ask_one, http, in_short, run, tidegate};
use crate::support::kubernetes_objects::{KINDS, assert_valid, workload};

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
    assert!(ran.stdout.contains("\n        volumeMounts:\n        - name: tidegate-socket\n"), "{}", ran.stdout);
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
        ("kind: Pod\nmetadata: {name: p}\n".to_owned(), "Pod 'p' has no spec"),
        ("kind: Pod\n---\na: {\nb".to_owned(), "in.yaml: line 4: "),
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

#[test]
fn manifests_without_a_workload_pass_as_they_are() {
    let file = "# The shop.\nkind: Service\nmetadata: {name: shop} # comment\n---\nkind: ConfigMap\n";
    let ran = injected(file, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), file), "{ran:?}");
    assert!(ran.stderr.contains("nothing to inject into"), "{ran:?}");
    let ran = injected(file, &["--output", "json"]);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, document["items"].as_array().map(Vec::len)), (Some(0), Some(2)), "{document}");
    assert_eq!(injected("", &[]).code, Some(0), "an empty file, too");
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
    assert_eq!(sidecar["command"], json!(["/bin/tidegate"]));
    let mut command = tidegate(&[]);
    // As a Service of this name in the namespace would have it.
    command.args(args).args(["--host", "127.0.0.1"]).env("GRPC_PORT", "tcp://10.0.0.1:8081");
    let mut process = Process::start(command);
    let line = process.line_with("tidegate: serving");
    assert!(line.contains("tidegate.sock"), "{line}");
    let before = line.split(" (HTTP)").next().unwrap_or_default();
    let http_port = before.rsplit(' ').next().and_then(|address| address.parse().ok()).expect("an address");
    assert_eq!(http(http_port, "GET", "/readyz", "").status, 200);
    assert_eq!(http(http_port, "POST", "/json", "{}").status, 404, "nobody outside the pod asks it");
    let socket = format!("unix://{here}/tidegate.sock");
    let channel = tonic::transport::Endpoint::try_from(socket).unwrap().connect().await.unwrap();
    let mut client =
        tidegate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient::new(channel);
    assert!(in_short(&answer(&mut client, ask_one("a=x")).await).starts_with("OK"));
    assert!(in_short(&answer(&mut client, ask_one("a=x")).await).starts_with("OVER"));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(format!("{here}/tidegate.sock")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o666, "containers run as different users");
}

/// What Kubernetes' own tools make of a file.
fn as_kubectl_reads(yaml: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file.yaml");
    std::fs::write(&file, yaml).unwrap();
    let kubectl = ["label", "--local", "--output", "json", "--filename"];
    let ran = run(std::process::Command::new("kubectl").args(kubectl).arg(&file).arg("a=b"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn values_stay_what_they_are_to_kubernetes_however_they_are_written() {
    // Once in place, once in a list that has to be written, once in a document that has to be.
    for volumes in [
        "volumes:\n  - name: c\n    configMap: {name: c, defaultMode: 0644}",
        "volumes: [{name: c, configMap: {name: c, defaultMode: 0644}}]",
        "<<: {volumes: [{name: c, configMap: {name: c, defaultMode: 0644}}]}",
    ] {
        let file = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  hostNetwork: yes\n  containers: [\n    \
             {{name: c, image: i, args: [\"on\", '1_000', \"y\"]}}]\n  {volumes}\n"
        );
        let before = as_kubectl_reads(&file);
        let ran = injected(&file, &[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let json = injected(&file, &["--output", "json"]).stdout;
        let listed: Value = serde_json::from_str(&json).unwrap();
        for after in [as_kubectl_reads(&ran.stdout), as_kubectl_reads(&listed["items"][0].to_string())] {
            assert_eq!(after["spec"]["volumes"][0], before["spec"]["volumes"][0], "{}", ran.stdout);
            assert_eq!(after["spec"]["volumes"][0]["configMap"]["defaultMode"], 420);
            assert_eq!(after["spec"]["hostNetwork"], true);
            assert_eq!(after["spec"]["containers"][0]["args"], json!(["on", "1_000", "y"]));
            assert_eq!(after["spec"]["initContainers"][0]["name"], "tidegate");
        }
    }
}

#[test]
fn documents_that_begin_on_their_separator_and_things_of_others_are_seen_for_what_they_are() {
    let pod = workload("Pod", &json!({})).to_string();
    let other = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\nspec: {tasks: []}\n";
    let ran = injected(&format!("{other}--- {pod}\n"), &[]);
    assert_eq!(ran.stderr.matches("injected").count(), 1, "{ran:?}");
    assert!(ran.stdout.starts_with(other), "{}", ran.stdout);
    let nested = json!({"kind": "List", "items": [{"kind": "PodList", "items": [workload("Pod", &json!({}))]}]});
    assert!(injected(&nested.to_string(), &[]).stderr.contains("Pod shop: injected"));
    for (flag, value) in [("--image", ""), ("--env-secret", ""), ("--rules-configmap", "Bad Name"), ("--keys-max", "0")]
    {
        let ran = injected(&pod, &[flag, value]);
        assert!(ran.code != Some(0) && ran.stdout.is_empty(), "{flag}: {ran:?}");
    }
}
