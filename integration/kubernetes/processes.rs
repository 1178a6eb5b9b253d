//! The manifests in `k8s/`, run: the real binary, and a real Envoy, with the arguments, variables and files that pods get.

use std::fs;
use std::net::SocketAddr;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::envoy_proxy::Envoy;
use crate::support::harness::{PATIENCE, Process, Service, free_port, http, run, tidegate, until};
use crate::support::manifests::{BUILT, Container, Workload, list, of_kind, the, workloads_of};

/// The files of a ConfigMap that a container has at a path.
fn files_at(name: &str, workload: &Workload, container: &Container<'_>, path: &str) -> TempDir {
    let volume = workload.mounted_at(container, path).unwrap_or_else(|| panic!("{}: {path}", workload.place));
    let wanted = volume.pointer("/configMap/name").expect("a ConfigMap");
    let map =
        of_kind(name, "ConfigMap").into_iter().find(|map| map["metadata"]["name"] == *wanted).expect("it is there");
    let directory = tempfile::tempdir().unwrap();
    for (file, text) in map["data"].as_object().expect("files") {
        fs::write(directory.path().join(file), text.as_str().unwrap()).unwrap();
    }
    directory
}

fn rules_of(name: &str, workload: &Workload, server: &Container<'_>) -> TempDir {
    files_at(name, workload, server, server.variable("TIDEGATE_RULES").expect("rules"))
}

#[test]
fn rules_of_every_server_are_without_fault() {
    let mut checked = 0;
    for name in BUILT.keys() {
        for workload in workloads_of(name) {
            let Some(server) = workload.server() else { continue };
            let rules = rules_of(name, &workload, &server);
            let ran = run(&mut tidegate(&["check", "--rules", rules.path().to_str().unwrap(), "--output", "json"]));
            let said: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
            assert_eq!((ran.code, list(&said, "/problems").count()), (Some(0), 0), "{}: {said:#}", workload.place);
            checked += 1;
        }
    }
    assert_eq!(checked, 4, "base, central, regions, sidecar");
}

/// A server with what its manifest says, except where it listens, and what Secrets would tell.
fn started(name: &str, more: &[(&str, &str)]) -> (Service, SocketAddr, TempDir) {
    let workloads = workloads_of(name);
    let workload = workloads.iter().find(|workload| workload.server().is_some()).expect("a server");
    let server = workload.server().expect("a server");
    let rules = rules_of(name, workload, &server);
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = tidegate(&server.args());
    command
        .envs(server.plain_variables())
        .env("TIDEGATE_RULES", rules.path())
        .env("PROMETHEUS_ADDR", metrics.to_string());
    command.args(["--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1", "--grpc-port", "0"]);
    command.args(["--log-level", "warn", "--log-format", "text"]);
    command.envs(more.iter().copied());
    (Service::of(command), metrics, rules)
}

#[test]
fn servers_start_and_answer_probes_and_prometheus() {
    // Nobody listens on port 1: Redis and MySQL are away, and pods are ready all the same.
    let secrets = [("REDIS_URL", "127.0.0.1:1"), ("MYSQL_URL", "mysql://tidegate:secret@127.0.0.1:1/tidegate")];
    for (name, secrets) in [("base", &[][..]), ("overlays/central", &secrets[..1]), ("overlays/regions", &secrets)] {
        let (service, metrics, _rules) = started(name, secrets);
        let deployment = the(name, "Deployment");
        let container = Container { spec: &deployment["spec"]["template"]["spec"]["containers"][0] };
        for probe in container.probes() {
            let path = probe["path"].as_str().unwrap();
            assert_eq!(service.get(path).status, 200, "k8s/{name}: {path}");
        }
        let monitor = the("monitoring", "ServiceMonitor");
        let page = http(metrics, "GET", monitor["spec"]["endpoints"][0]["path"].as_str().unwrap(), "");
        assert!(page.body.contains("\ntidegate_build_info"), "{page:?}");
        let is_warning = |line: &&String| line.contains("there is no setting") || line.contains("no effect");
        let warnings: Vec<&String> = service.process.said.iter().filter(is_warning).collect();
        assert!(warnings.is_empty(), "k8s/{name}: {warnings:?}");
    }
}

#[test]
fn the_sidecar_limits_what_its_envoy_lets_in() {
    let name = "overlays/sidecar";
    let workloads = workloads_of(name);
    let workload = &workloads[0];
    let server = workload.server().expect("a sidecar");
    let rules = rules_of(name, workload, &server);
    let run_directory = tempfile::tempdir().unwrap();
    let socket = server.variable("GRPC_UDS").expect("a socket");
    let place = socket.rsplit_once('/').expect("a path").0;
    let socket_here = socket.replace(place, run_directory.path().to_str().unwrap());

    let mut command = tidegate(&server.args());
    command.envs(server.plain_variables()).env("GRPC_UDS", &socket_here).env("TIDEGATE_RULES", rules.path());
    command.env("PROMETHEUS_ADDR", format!("127.0.0.1:{}", free_port())).args(["--host", "127.0.0.1", "--port", "0"]);
    command.args(["--log-level", "warn", "--log-format", "text"]);
    let mut process = Process::start(command);
    process.line_with("tidegate: serving");

    let envoy = workload.containers().find(|container| container.spec["name"] == "envoy").expect("Envoy");
    for container in [&server, &envoy] {
        let volume = workload.mounted_at(container, place).expect("the directory of the socket");
        assert!(volume["emptyDir"].is_object(), "shared by both: {volume}");
    }
    let config_path = envoy.args()[1];
    let (directory, file) = config_path.rsplit_once('/').expect("a path");
    let config = fs::read_to_string(files_at(name, workload, &envoy, directory).path().join(file)).unwrap();
    assert!(config.contains(socket), "Envoy asks there");
    let listened = format!("port_value: {}", envoy.port(&"http".into()).expect("a port"));
    assert!(config.contains(&listened), "Envoy listens there");
    let application = free_port();
    let config = config.replace(socket, &socket_here).replace(&listened, "port_value: 0");
    let envoy = Envoy::start(&config.replace("port_value: 8000", &format!("port_value: {application}")));

    let ask = |user: &str| envoy.get("/", &[("x-user", user)]).status;
    until(PATIENCE, "Envoy has a connection", || (ask("warm-up") == 200).then_some(()));
    let answers: Vec<u16> = (0..7).map(|_| ask("alice")).collect();
    assert_eq!(answers, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!((ask("bob"), envoy.get("/ready", &[("x-user", "alice")]).status), (200, 200));
}
