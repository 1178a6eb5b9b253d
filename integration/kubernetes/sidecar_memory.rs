//! The injected sidecar stays within its memory limit when it is as full as it gets, whatever its keys take.

use serde_json::{Value, json};

use crate::support::flood::Flood;
use crate::support::harness::{Service, free_port, run, tidegate};
use crate::support::kubernetes_objects::workload;

/// Usual keys, and heavy ones: exact windows of many hits, with values that are just short enough to be kept.
const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 1000, unit: year}}
  - {key: login, rate_limit: {requests_per_unit: 1000, unit: hour, algorithm: exact_window}}
";

/// The sidecar of a pod as `tidegate inject` makes it.
fn sidecar() -> Value {
    let pod = workload("Pod", &json!({}));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pod.yaml");
    std::fs::write(&path, serde_yaml::to_string(&pod).unwrap()).unwrap();
    let ran = run(tidegate(&["inject", "--output", "json", "-f"]).arg(&path));
    let injected: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    injected["items"][0]["spec"]["initContainers"][0].clone()
}

/// What a flag of it is set to.
fn argument(sidecar: &Value, flag: &str) -> String {
    let mut arguments = sidecar["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
    arguments.find(|argument| *argument == flag).unwrap_or_else(|| panic!("{flag} is set"));
    arguments.next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_sidecar_stays_within_its_memory_limit() {
    let sidecar = sidecar();
    let limit = sidecar["resources"]["limits"]["memory"].as_str().and_then(|text| text.strip_suffix("Mi"));
    let limit = limit.and_then(|text| text.parse::<u64>().ok()).expect("a limit in MiB") << 20;
    let bounds = ["--keys-max", "--keys-bytes-max", "--max-arriving-bytes"];
    let flags: Vec<String> = bounds.iter().flat_map(|flag| [(*flag).to_owned(), argument(&sidecar, flag)]).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // All that sharing takes, but nobody to wait for.
    let redis = format!("redis://127.0.0.1:{}", free_port());
    let service = Service::start_with(RULES, &flags, &[("REDIS_URL", &redis)]);
    // One after the other: what usual keys have taken is not given back when heavy ones come.
    for (key, value_bytes, hits) in [("user", 32, 1), ("login", 120, 300)] {
        Flood { key, value_bytes, hits, keys: 400_000 }.pour(service.grpc).await;
        let used = service.process.memory("VmHWM");
        let [keys, keys_max, bytes, bytes_max, evicted] =
            ["keys", "keys_max", "keys_bytes", "keys_bytes_max", "keys_evicted_total"]
                .map(|name| service.metric(&format!("tidegate_{name}")).unwrap());
        assert!(used <= limit, "{key}: {used} of {limit} bytes with {keys} keys");
        assert!(bytes <= 1.01 * bytes_max && bytes_max < limit as f64, "{key}: {bytes} of {bytes_max}");
        // Full by number, or by bytes.
        assert!(keys >= keys_max - 1.0 || bytes > 0.99 * bytes_max, "{key}: {keys} keys of {bytes} bytes");
        assert!(keys_max >= 200_000.0 && evicted >= 200_000.0, "{key}: {evicted} given up");
        eprintln!("{key}: {} of {} MiB with {keys} keys", used >> 20, limit >> 20);
    }
}
