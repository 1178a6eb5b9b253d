//! The manifests in `k8s/`, without a cluster: what the API server would refuse, and what it would take although it does
//! not work: names that stand for nothing, ports that nobody opens, settings that do not exist, too little time to stop.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::harness::{run, tidegate};
use crate::support::manifests::{
    BUILT, Container, Workload, list, names_variable, objects, of_kind, the, workloads, workloads_of,
};

/// Kinds that only a cluster with their operator knows.
const CUSTOM: [&str; 3] = ["ServiceMonitor", "Issuer", "Certificate"];

/// The oldest version that has all we use, and the newest that kubernetes-validate 1.37 knows.
const KUBERNETES: [&str; 2] = ["1.30.0", "1.37.0"];

/// What stopping takes beyond drain delay and drain timeout: telling Redis, and MySQL.
const LAST_WORDS: Duration = Duration::from_secs(4);

#[test]
fn every_kustomization_is_valid() {
    for expected in ["base", "monitoring", "overlays/central", "overlays/regions", "overlays/sidecar", "webhook"] {
        assert!(BUILT.contains_key(expected), "{expected}");
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/python"));
    command.args(["-m", "kubernetes_validate", "--strict"]);
    command.args(KUBERNETES.iter().flat_map(|version| ["-k", version]));
    let mut expected = BTreeSet::new();
    for (name, built) in BUILT.iter() {
        let file = directory.path().join(format!("{}.yaml", name.replace('/', "-")));
        fs::write(&file, built).unwrap();
        for object in objects(name).iter().filter(|object| !CUSTOM.iter().any(|kind| object["kind"] == *kind)) {
            let (kind, called) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
            let resource = format!("{}/{called}", kind.to_lowercase());
            for version in KUBERNETES.map(|version| version.trim_end_matches(".0")) {
                let line = format!("INFO {} passed for resource {resource} against version {version}", file.display());
                expected.insert(line);
            }
        }
        command.arg(file);
    }
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let said: BTreeSet<String> =
        ran.stdout.lines().filter(|line| !CUSTOM.iter().any(|kind| line.contains(kind))).map(str::to_owned).collect();
    assert_eq!(said, expected);
}

#[test]
fn pods_are_restricted_and_write_nowhere() {
    for workload in workloads() {
        let place = &workload.place;
        let pod = &workload.spec["securityContext"];
        assert_eq!(
            (&pod["runAsNonRoot"], &pod["seccompProfile"]["type"]),
            (&json!(true), &json!("RuntimeDefault")),
            "{place}"
        );
        assert!(pod["runAsUser"].as_u64().is_some_and(|user| user != 0), "{place}");
        assert_eq!(workload.spec["automountServiceAccountToken"], false, "{place}: nobody asks the API server");
        assert_eq!(workload.spec["enableServiceLinks"], false, "{place}: a Service called grpc would set GRPC_PORT");
        for container in workload.containers() {
            let context = &container.spec["securityContext"];
            let expected = json!({
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
            assert_eq!(*context, expected, "{place}");
            let (request, limit) = ("/resources/requests/memory", "/resources/limits/memory");
            assert!(container.spec.pointer(request).is_some(), "{place}");
            assert_eq!(container.spec.pointer(request), container.spec.pointer(limit), "{place}");
        }
    }
    let namespaces = BUILT.keys().flat_map(|name| of_kind(name, "Namespace"));
    for namespace in namespaces {
        assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    }
}

#[test]
fn every_argument_and_setting_exists() {
    let mut tried = BTreeSet::new();
    for workload in workloads() {
        for container in workload.tidegates() {
            let args = container.args();
            let ran = run(tidegate(&args).arg("--help"));
            assert_eq!(ran.code, Some(0), "{}: {}", workload.place, ran.stderr);
            for name in container.variables() {
                assert!(names_variable(&ran.stdout, name), "{}: {name}", workload.place);
            }
            tried.insert(args[0].to_owned());
        }
    }
    assert_eq!(tried, ["cleanup", "migrate", "serve", "webhook"].map(str::to_owned).into());
}

#[test]
fn there_is_time_to_drain() {
    for workload in workloads() {
        let Some(server) = workload.server() else { continue };
        let setting = |name| humantime::parse_duration(server.variable(name).expect(name)).unwrap();
        let (delay, timeout) = (setting("TIDEGATE_DRAIN_DELAY"), setting("TIDEGATE_DRAIN_TIMEOUT"));
        // A sidecar is told to stop when the others have.
        let is_pause = |container: Container<'_>| container.spec.pointer("/lifecycle/preStop/sleep/seconds")?.as_u64();
        let before: u64 = workload.containers().filter_map(is_pause).max().unwrap_or(0);
        let grace = Duration::from_secs(workload.spec["terminationGracePeriodSeconds"].as_u64().unwrap());
        let needed = Duration::from_secs(before) + delay + timeout + LAST_WORDS;
        assert!(grace > needed, "{}: {grace:?} for {needed:?}", workload.place);
        let is_sidecar = server.spec["restartPolicy"] == "Always";
        assert_eq!(delay.as_secs(), if is_sidecar { 0 } else { 15 }, "{}", workload.place);
    }
}

#[test]
fn ports_are_those_that_are_open() {
    for workload in workloads() {
        let place = &workload.place;
        for container in workload.containers() {
            for probe in container.probes() {
                assert!(container.port(&probe["port"]).is_some(), "{place}: {probe}");
            }
        }
        let Some(server) = workload.server() else { continue };
        let mut open = BTreeSet::from([number(server.variable("PORT").unwrap_or("8080"))]);
        open.insert(number(server.variable("PROMETHEUS_ADDR").expect("metrics are served").trim_start_matches(':')));
        if server.variable("GRPC_UDS").is_none() {
            open.insert(number(server.variable("GRPC_PORT").unwrap_or("8081")));
        }
        assert_eq!(server.ports(), open, "{place}");
        for probe in server.probes() {
            let port = server.variable("PORT").unwrap_or("8080");
            assert_eq!(server.port(&probe["port"]), Some(number(port)), "{place}: {probe}");
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn services_lead_to_open_ports() {
    for name in BUILT.keys() {
        for service in of_kind(name, "Service") {
            let pods = selected(name, &service, "/spec/selector");
            for port in list(&service, "/spec/ports") {
                let is_open =
                    |pod: &Workload| pod.containers().any(|container| container.port(&port["targetPort"]).is_some());
                assert!(!pods.is_empty() && pods.iter().all(is_open), "k8s/{name}: {service:#}");
                assert!(port["name"] != "grpc" || port["appProtocol"] == "grpc", "Istio: {service:#}");
            }
        }
    }
    for name in ["base", "overlays/central", "overlays/regions"] {
        let headless = of_kind(name, "Service").into_iter().find(|service| service["spec"]["clusterIP"] == "None");
        assert_eq!(headless.expect("a headless Service")["spec"]["ports"][0]["name"], "grpc", "k8s/{name}");
    }
}

/// The workloads of a kustomization that a selector of one of its objects is for.
fn selected(name: &str, object: &Value, selector: &str) -> Vec<Workload> {
    let selector =
        object.pointer(selector).and_then(Value::as_object).unwrap_or_else(|| panic!("{selector}: {object:#}"));
    assert!(!selector.is_empty(), "an empty selector is for everybody: {object:#}");
    let is_selected = |workload: &Workload| {
        workload.namespace == object["metadata"]["namespace"]
            && selector.iter().all(|(label, value)| workload.labels.get(label) == Some(value))
    };
    workloads_of(name).into_iter().filter(is_selected).collect()
}

#[test]
fn selectors_select_the_pods_that_they_are_for() {
    for name in BUILT.keys() {
        for (kind, selector) in [
            ("Deployment", "/spec/selector/matchLabels"),
            ("PodDisruptionBudget", "/spec/selector/matchLabels"),
            ("NetworkPolicy", "/spec/podSelector/matchLabels"),
        ] {
            for object in of_kind(name, kind) {
                assert!(!selected(name, &object, selector).is_empty(), "k8s/{name}: {object:#}");
            }
        }
        for deployment in of_kind(name, "Deployment") {
            let labels = &deployment["spec"]["template"]["metadata"]["labels"];
            for spread in list(&deployment, "/spec/template/spec/topologySpreadConstraints") {
                assert_eq!(spread["labelSelector"]["matchLabels"], *labels, "k8s/{name}");
            }
        }
        for autoscaler in of_kind(name, "HorizontalPodAutoscaler") {
            let target = &autoscaler["spec"]["scaleTargetRef"];
            let is_target = |object: &&Value| {
                object["kind"] == target["kind"]
                    && object["apiVersion"] == target["apiVersion"]
                    && object["metadata"]["name"] == target["name"]
            };
            let objects = objects(name);
            let scaled = objects.iter().find(is_target).expect("the autoscaler's target");
            assert_eq!(scaled["spec"].get("replicas"), None, "k8s/{name}: every apply would set them again");
        }
    }
}

/// Ports that policies for a workload let in or out.
fn allowed(name: &str, workload: &Workload, direction: &str) -> BTreeSet<u64> {
    let policies = of_kind(name, "NetworkPolicy").into_iter().filter(|policy| {
        selected(name, policy, "/spec/podSelector/matchLabels").iter().any(|pod| pod.place == workload.place)
    });
    let ports = |policy: Value| -> Vec<u64> {
        let rules = list(&policy["spec"], direction);
        rules.flat_map(|rule| list(rule, "/ports")).filter_map(|port| port["port"].as_u64()).collect()
    };
    policies.flat_map(ports).collect()
}

#[test]
fn policies_let_through_what_is_needed_and_no_more() {
    let mut seen = 0;
    for name in BUILT.keys().filter(|name| !of_kind(name, "NetworkPolicy").is_empty()) {
        for workload in workloads_of(name) {
            let open: BTreeSet<u64> = workload.containers().flat_map(|container| container.ports()).collect();
            assert_eq!(allowed(name, &workload, "/ingress"), open, "{}", workload.place);
            let variables: BTreeSet<String> =
                workload.tidegates().flat_map(|container| container.variables()).map(str::to_owned).collect();
            let mut asked = BTreeSet::new();
            for (variable, port) in [("REDIS_URL", 6379), ("MYSQL_URL", 3306)] {
                if variables.contains(variable) {
                    asked.extend([53, port]);
                }
            }
            assert_eq!(allowed(name, &workload, "/egress"), asked, "{}", workload.place);
            seen += 1;
        }
    }
    assert_eq!(seen, 7, "base, central, regions with its two jobs, webhook twice");
    let metrics = json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
    let policy = the("base", "NetworkPolicy");
    let rule =
        list(&policy, "/spec/ingress").find(|rule| rule["ports"][0]["port"] == 9090).expect("a rule for metrics");
    assert_eq!(rule["from"], metrics);
}

#[test]
fn what_is_mounted_or_read_is_there() {
    let docs = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/kubernetes.md")).unwrap();
    for name in BUILT.keys() {
        let maps = of_kind(name, "ConfigMap");
        for workload in workloads_of(name) {
            let mut secrets: Vec<&Value> = Vec::new();
            for volume in list(&workload.spec, "/volumes") {
                if let Some(map) = volume.pointer("/configMap/name") {
                    assert!(maps.iter().any(|other| other["metadata"]["name"] == *map), "{}: {map}", workload.place);
                }
                secrets.extend(volume.pointer("/secret/secretName"));
            }
            for container in workload.containers() {
                for mount in list(container.spec, "/volumeMounts") {
                    let is_it = |volume: &Value| volume["name"] == mount["name"];
                    assert!(list(&workload.spec, "/volumes").any(is_it), "{}: {mount}", workload.place);
                }
                let variables = list(container.spec, "/env");
                secrets.extend(variables.filter_map(|variable| variable.pointer("/valueFrom/secretKeyRef/name")));
            }
            for secret in secrets.into_iter().filter_map(Value::as_str) {
                let is_made = ["generic", "tls"].iter().any(|kind| docs.contains(&format!("secret {kind} {secret} ")));
                assert!(is_made, "docs/kubernetes.md does not say how to make {secret}");
            }
        }
    }
}

#[test]
fn several_pods_have_redis() {
    let base = the("base", "Deployment");
    assert_eq!(base["spec"]["replicas"], 1, "each would admit the whole limit");
    for name in ["overlays/central", "overlays/regions"] {
        let least = the(name, "HorizontalPodAutoscaler")["spec"]["minReplicas"].as_u64();
        assert!(least >= Some(2), "k8s/{name}: one pod is no pod when it is replaced");
        let workloads = workloads_of(name);
        let server = workloads.iter().find_map(Workload::server).expect("a server");
        assert!(server.variables().contains("REDIS_URL"), "k8s/{name}");
        assert_eq!(server.variables().contains("MYSQL_URL"), name == "overlays/regions");
    }
    let regions = workloads_of("overlays/regions");
    let server = regions.iter().find_map(Workload::server).expect("a server");
    let all: Vec<&str> = server.variable("TIDEGATE_REGIONS").expect("all regions").split(',').collect();
    assert!(all.contains(&server.variable("REGION").expect("a region")), "{all:?}");
}

#[test]
fn metrics_are_found_by_the_service_monitor() {
    let monitor = the("monitoring", "ServiceMonitor");
    let labels = monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels").clone();
    for name in ["overlays/central", "overlays/regions"] {
        let endpoint = &monitor["spec"]["endpoints"][0];
        let services = of_kind(name, "Service").into_iter().filter(|service| {
            service["metadata"]["namespace"] == monitor["metadata"]["namespace"]
                && labels.iter().all(|(label, value)| service["metadata"]["labels"].get(label) == Some(value))
        });
        let ports: usize = services
            .map(|service| list(&service, "/spec/ports").filter(|port| port["name"] == endpoint["port"]).count())
            .sum();
        assert_eq!(ports, 1, "k8s/{name}: each pod is read once");
    }
}

#[test]
fn the_webhook_configuration_leads_to_the_webhook() {
    for name in ["webhook", "webhook/base"] {
        let configuration = the(name, "MutatingWebhookConfiguration");
        let (deployment, service) = (the(name, "Deployment"), the(name, "Service"));
        let webhook = &configuration["webhooks"][0];
        let target = &webhook["clientConfig"]["service"];
        assert_eq!(target["name"], service["metadata"]["name"]);
        assert_eq!(target["namespace"], service["metadata"]["namespace"]);
        assert_eq!((&target["port"], &target["path"]), (&service["spec"]["ports"][0]["port"], &json!("/mutate")));
        let own = &deployment["metadata"]["namespace"];
        let spared = &webhook["namespaceSelector"]["matchExpressions"][0];
        assert_eq!((&spared["key"], &spared["operator"]), (&json!("kubernetes.io/metadata.name"), &json!("NotIn")));
        assert!(list(spared, "/values").any(|namespace| namespace == own), "its own pods could not start: {spared}");
        assert_eq!(webhook["namespaceSelector"]["matchLabels"], json!({"tidegate.dev/inject": "enabled"}));
        let more = ["failurePolicy", "reinvocationPolicy", "sideEffects"].map(|field| webhook[field].as_str().unwrap());
        assert_eq!((more, &webhook["timeoutSeconds"]), (["Ignore", "IfNeeded", "None"], &json!(5)));

        let workloads = workloads_of(name);
        let container = workloads[0].tidegates().next().expect("a container");
        let args: BTreeMap<&str, &str> = container.args()[1..].chunks(2).map(|pair| (pair[0], pair[1])).collect();
        let listened = args["--listen"].rsplit(':').next().map(number);
        assert_eq!(container.port(&service["spec"]["ports"][0]["targetPort"]), listened);
        assert!(container.probes().all(|probe| probe["scheme"] == "HTTPS"));
        assert_eq!(args["--image"], container.image(), "pods get the version of the webhook");
        let certificate = workloads[0].mounted_at(&container, "/certs").expect("a certificate");
        assert_eq!((args["--tls-cert"], args["--tls-key"]), ("/certs/tls.crt", "/certs/tls.key"));
        if name == "webhook" {
            let made = the(name, "Certificate");
            assert_eq!(made["spec"]["secretName"], certificate["secret"]["secretName"]);
            let (service, namespace) = (target["name"].as_str().unwrap(), target["namespace"].as_str().unwrap());
            assert_eq!(made["spec"]["dnsNames"], json!([format!("{service}.{namespace}.svc")]));
            let from = &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
            let expected = ["namespace", "name"].map(|field| made["metadata"][field].as_str().unwrap()).join("/");
            assert_eq!(*from, expected);
        }
    }
}
