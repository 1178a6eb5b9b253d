//! The name that Envoy gives as the host of a call: HTTP/2 takes host names only, and a call with another is reset unread.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::examples::files::files_below;
use crate::support::harness::{run, tidegate};

/// Every `envoy_grpc` in a document: the authority, or the cluster's name, which Envoy sends without one.
fn authorities(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(service) = map.get("envoy_grpc") {
                let name = service.get("authority").or(service.get("cluster_name")).and_then(Value::as_str);
                found.push(name.expect("a cluster has a name").to_owned());
            }
            map.values().for_each(|value| authorities(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| authorities(value, found)),
        _ => {}
    }
}

#[track_caller]
fn assert_host_names(what: &str, text: &str) -> usize {
    let mut found = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let document = Value::deserialize(document).unwrap_or_else(|error| panic!("{what}: {error}"));
        authorities(&document, &mut found);
    }
    for name in &found {
        assert!(name.parse::<http::uri::Authority>().is_ok(), "{what}: {name}");
    }
    found.len()
}

#[test]
fn whatever_people_copy_names_a_host_that_http2_takes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for folder in ["envoy", "k8s"] {
        for file in files_below(&root.join(folder)).iter().filter(|file| file.ends_with(".yaml")) {
            count += assert_host_names(file, &std::fs::read_to_string(root.join(folder).join(file)).unwrap());
        }
    }
    assert!(count >= 7, "{count} of them");

    let rules = ["--rules", "envoy/rules", "--domain", "edge", "--map", "api_key=header:x-api-key"];
    for kind in ["envoy", "istio"] {
        let ran = run(tidegate(&[&["gen", kind][..], &rules].concat()).current_dir(root));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(assert_host_names(kind, &ran.stdout) > 0, "{}", ran.stdout);
    }
}
