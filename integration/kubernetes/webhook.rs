//! `tidegate webhook`, asked as the API server asks: pods that want a sidecar get it, all others pass, and nothing that is
//! sent to it goes without a proper answer.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::certificates::{Authority, Connector, Files, SERVER, Target};
use crate::support::harness::{HttpAnswer, PATIENCE, Process, receive_http, run, send_http, tidegate, until};
use crate::support::kubernetes_objects::{KINDS, assert_valid, review, workload};

struct Webhook {
    process: Process,
    address: SocketAddr,
    config: Arc<ClientConfig>,
    authority: Authority,
    files: Files,
    _directory: TempDir,
}

impl Webhook {
    fn start(flags: &[&str]) -> Webhook {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("cluster");
        let files = Files::in_directory(directory.path(), &authority.issue(&[SERVER]), &authority);
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
        let mut command = tidegate(&["webhook", "--listen", "127.0.0.1:0", "--log-level", "info"]);
        command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key).args(flags);
        let mut process = Process::start(command);
        let line = process.line_with("into pods, on ");
        let address: SocketAddr = line.rsplit(' ').next().and_then(|it| it.parse().ok()).expect("an address");
        let connector = Connector::tls(Target::Tcp(address), &authority, None);
        let mut config = ClientConfig::clone(&connector.tls_config().expect("it has one"));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Webhook { process, address, config: Arc::new(config), authority, files, _directory: directory }
    }

    /// One request on a connection of its own.
    fn send(&self, method: &str, path: &str, body: &[u8]) -> HttpAnswer {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let connection = ClientConnection::new(self.config.clone(), ServerName::try_from(SERVER).unwrap()).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        send_http(&mut stream, method, path, &[("content-type", "application/json")], body);
        receive_http(stream)
    }

    /// What it says of an object.
    fn asked(&self, object: &Value, operation: &str) -> Value {
        let review = review(object, operation);
        let answer = self.send("POST", "/mutate", review.to_string().as_bytes());
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{answer:?}");
        let answered = answer.json();
        assert_eq!((&answered["apiVersion"], &answered["kind"]), (&review["apiVersion"], &review["kind"]));
        assert_eq!(answered["response"]["uid"], review["request"]["uid"]);
        answered["response"].clone()
    }

    /// The object as it is after the review.
    fn admitted(&self, object: &Value, operation: &str) -> Value {
        let response = self.asked(object, operation);
        assert_eq!(response["allowed"], true, "{response}");
        let mut object = object.clone();
        if let Some(patch) = response["patch"].as_str() {
            assert_eq!(response["patchType"], "JSONPatch");
            let steps: Vec<Value> = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
            steps.iter().for_each(|step| patch_object(&mut object, step));
        }
        object
    }
}

/// A step of a JSON patch (RFC 6902), as the API server takes it. There are only such that add something.
fn patch_object(object: &mut Value, step: &Value) {
    assert_eq!(step["op"], "add", "{step}");
    let (above, last) = step["path"].as_str().and_then(|path| path.rsplit_once('/')).expect("a path");
    let value = step["value"].clone();
    match object.pointer_mut(above) {
        Some(Value::Object(fields)) => drop(fields.insert(last.to_owned(), value)),
        Some(Value::Array(list)) if last == "-" => list.push(value),
        Some(Value::Array(list)) => list.insert(last.parse().expect("a number"), value),
        other => panic!("{step}: {other:?}"),
    }
}

fn wanted() -> Value {
    json!({"tidegate.dev/inject": "true"})
}

#[test]
fn every_kind_gets_its_sidecar_once_if_its_pods_want_it() {
    let webhook = Webhook::start(&["--image", "registry.test/tidegate:1", "--env-secret", "redis"]);
    for (kind, _, pod) in KINDS {
        let object = workload(kind, &wanted());
        let injected = webhook.admitted(&object, "CREATE");
        assert_valid(std::slice::from_ref(&injected));
        let sidecar = &injected.pointer(&format!("{pod}/spec/initContainers/0")).expect(kind);
        assert_eq!((&sidecar["name"], &sidecar["image"]), (&json!("tidegate"), &json!("registry.test/tidegate:1")));
        assert_eq!(webhook.admitted(&injected, "CREATE"), injected, "{kind}: a second pass changes nothing");
        for annotations in [json!({}), json!({"tidegate.dev/inject": "false"})] {
            let other = workload(kind, &annotations);
            assert_eq!(webhook.admitted(&other, "CREATE"), other, "{kind}: nobody asked for it");
        }
    }
    let pod = workload("Pod", &wanted());
    assert_eq!(webhook.admitted(&pod, "UPDATE"), pod, "the containers of a pod can't change");
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}});
    assert_eq!(webhook.admitted(&config, "CREATE"), config);
    let mut foreign = pod.clone();
    foreign["apiVersion"] = json!("foo.dev/v1");
    assert_eq!(webhook.admitted(&foreign, "CREATE"), foreign);
}

#[test]
fn a_pod_that_a_controller_made_is_a_pod_with_what_others_put_into_it() {
    let webhook = Webhook::start(&["--mode", "plain"]);
    let mut pod = workload("Pod", &wanted());
    pod["metadata"] = json!({
        "generateName": "shop-5d9c-", "labels": {"app": "shop"}, "annotations": wanted(), "creationTimestamp": null,
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "shop-5d9c", "uid": "u", "controller": true}],
    });
    pod["spec"]["initContainers"] = json!([{"name": "istio-init", "image": "proxy:1"}]);
    pod["spec"]["fieldOfTheFuture"] = json!({"a": [1]});
    let injected = webhook.admitted(&pod, "CREATE");
    assert_eq!(injected["spec"]["containers"][2]["name"], "tidegate");
    assert_eq!(injected["spec"]["initContainers"], pod["spec"]["initContainers"]);
    assert_eq!(injected["spec"]["fieldOfTheFuture"], pod["spec"]["fieldOfTheFuture"]);
    // With a plain sidecar the Job would never be done.
    pod["metadata"]["ownerReferences"][0]["kind"] = json!("Job");
    let response = webhook.asked(&pod, "CREATE");
    assert_eq!(response["allowed"], false);
    assert!(
        response["status"]["message"].as_str().is_some_and(|text| text.contains("would never finish")),
        "{response}"
    );
}

#[test]
fn a_pod_that_can_not_have_what_it_wants_is_told_why() {
    let webhook = Webhook::start(&[]);
    for (annotations, part) in [
        (json!({"tidegate.dev/inject": "yes"}), "the annotation tidegate.dev/inject is 'yes'"),
        (json!({"tidegate.dev/inject": "true", "tidegate.dev/mode": "init"}), "write native or plain"),
        (json!({"tidegate.dev/inject": "true", "tidegate.dev/rule": "x"}), "is none of"),
    ] {
        let response = webhook.asked(&workload("Pod", &annotations), "CREATE");
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(false), &Value::Null), "{response}");
        assert_eq!(response["status"]["code"], 422);
        assert!(response["status"]["message"].as_str().is_some_and(|text| text.contains(part)), "{response}");
    }
}

#[test]
fn what_is_no_review_gets_a_proper_answer() {
    let webhook = Webhook::start(&[]);
    let mut old = review(&workload("Pod", &wanted()), "CREATE");
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut empty = old.clone();
    empty["apiVersion"] = json!("admission.k8s.io/v1");
    empty["request"] = Value::Null;
    for (body, part) in [
        (Vec::new(), "is not an AdmissionReview"),
        (b"{".to_vec(), "is not an AdmissionReview"),
        (b"\xff\xfe".to_vec(), "is not an AdmissionReview"),
        (b"[]".to_vec(), "the body is nothing of nothing"),
        (old.to_string().into_bytes(), "AdmissionReview of admission.k8s.io/v1beta1"),
        (empty.to_string().into_bytes(), "the review has no request"),
        (
            json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": 5}})
                .to_string()
                .into_bytes(),
            "is not an AdmissionReview",
        ),
    ] {
        let answer = webhook.send("POST", "/mutate", &body);
        assert_eq!(answer.status, 400, "{answer:?}");
        let response = answer.json()["response"].clone();
        assert_eq!(response["allowed"], false);
        assert!(response["status"]["message"].as_str().is_some_and(|text| text.contains(part)), "{part}: {response}");
    }
    assert_eq!(webhook.send("POST", "/mutate", &vec![b' '; 9 * 1024 * 1024]).status, 413);
    assert_eq!(webhook.send("GET", "/mutate", b"").status, 405);
    assert_eq!(webhook.send("POST", "/", b"").status, 404);
    assert_eq!(webhook.send("GET", "/readyz", b"").status, 200);
    // And a sound one is still answered.
    assert!(webhook.asked(&workload("Pod", &wanted()), "CREATE")["patch"].is_string());
}

#[test]
fn an_annotation_can_not_forge_a_line_of_the_log() {
    let mut webhook = Webhook::start(&[]);
    let forged = "yes\n2026-11-18T00:00:00.000000Z ERROR forged";
    let response = webhook.asked(&workload("Pod", &json!({"tidegate.dev/inject": forged})), "CREATE");
    assert_eq!(response["allowed"], false, "{response}");
    let line = webhook.process.line_with("forged");
    assert!(line.contains("a pod is denied") && !line.starts_with("2026-11-18T00:00:00"), "{line}");
}

#[test]
fn a_new_certificate_is_served_without_a_restart_and_a_stop_is_clean() {
    let mut webhook = Webhook::start(&[]);
    let renewed = webhook.authority.issue(&[SERVER]);
    webhook.files.replace_pair(&renewed);
    webhook.process.line_with("the certificates were reloaded");
    until(PATIENCE, "the new one is shown", || {
        let stream = TcpStream::connect_timeout(&webhook.address, PATIENCE).ok()?;
        let mut connection =
            ClientConnection::new(webhook.config.clone(), ServerName::try_from(SERVER).unwrap()).unwrap();
        let mut stream = stream;
        connection.complete_io(&mut stream).ok()?;
        (connection.peer_certificates()?.first()? == &renewed.der()).then_some(())
    });
    webhook.process.signal("HUP");
    webhook.process.line_with("the certificates were reloaded");
    webhook.process.signal("TERM");
    assert!(webhook.process.ends_within(PATIENCE).is_some_and(|status| status.success()));
    let ran = run(&mut tidegate(&["webhook", "--tls-cert", "/nowhere.crt", "--tls-key", "/nowhere.key"]));
    assert!(ran.code == Some(1) && ran.stderr.contains("--tls-cert: /nowhere.crt can't be read"), "{ran:?}");
}
