//! The Dockerfile and the compose file, without a Docker engine: what they name is there, and what they set exists.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::envoy_proxy::Envoy;
use crate::support::harness::{Process, free_port, http, rule_file, run, tidegate};
use crate::support::manifests::{list, names_variable, workloads};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A file of the package.
pub fn read(file: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The lines of the Dockerfile that begin with an instruction.
fn instructions(name: &str) -> Vec<String> {
    let joined = read("Dockerfile").replace("\\\n", " ");
    joined.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned).collect()
}

/// YAML with its merge keys resolved.
pub fn yaml(text: &str) -> Value {
    let mut value: serde_yaml::Value = serde_yaml::from_str(text).unwrap();
    value.apply_merge().unwrap();
    serde_json::to_value(value).unwrap()
}

#[test]
fn the_build_has_every_file_that_it_needs() {
    let context = tempfile::tempdir().unwrap();
    let ignored = read(".dockerignore");
    let let_through: BTreeSet<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut copied = BTreeSet::new();
    for instruction in instructions("COPY").iter().filter(|instruction| !instruction.starts_with("--from")) {
        let (names, target) = instruction.rsplit_once(' ').expect("sources and a target");
        for name in names.split(' ') {
            assert!(target == "./" || target == name, "everything stays where it is: {instruction}");
            let ran = run(Command::new("cp").arg("-r").arg(Path::new(ROOT).join(name)).arg(context.path()));
            assert_eq!(ran.code, Some(0), "{instruction}: {ran:?}");
            copied.insert(name.to_owned());
        }
    }
    assert_eq!(copied, let_through.iter().map(|name| (*name).to_owned()).collect(), "what .dockerignore lets through");

    // Cargo finds every target that Cargo.toml names.
    let metadata = ["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"];
    let ran = run(Command::new(env!("CARGO")).args(metadata).current_dir(context.path()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let described: Value = serde_json::from_str(&ran.stdout).unwrap();
    let package = &described["packages"][0];
    let toolchain = instructions("FROM").first().cloned().expect("a stage that builds");
    assert!(toolchain.starts_with(&format!("rust:{}-", package["rust_version"].as_str().unwrap())), "{toolchain}");
}

#[test]
fn every_command_is_in_the_image() {
    let [build] = &instructions("RUN")[..] else { panic!("one step builds") };
    assert!(build.contains("/image/bin/tidegate") && build.contains("ln -s tidegate /image/bin/ratelimit"), "{build}");
    assert_eq!(
        instructions("ENTRYPOINT"),
        Vec::<String>::new(),
        "it would stand before /bin/ratelimit of a compose file"
    );
    assert_eq!(instructions("CMD"), [r#"["/bin/tidegate", "serve"]"#]);
    assert_eq!(instructions("USER"), ["65532:65532"]);
    for workload in workloads() {
        assert_eq!(workload.spec["securityContext"]["runAsUser"], 65532, "{}: the user of the image", workload.place);
        for container in workload.tidegates() {
            assert_eq!(container.spec["command"], serde_json::json!(["/bin/tidegate"]), "{}", workload.place);
            assert_eq!(container.image(), concat!("tidegate:", env!("CARGO_PKG_VERSION")), "{}", workload.place);
        }
    }
}

#[test]
fn it_serves_under_the_name_of_the_reference() {
    let bin = tempfile::tempdir().unwrap();
    let name = bin.path().join("ratelimit");
    symlink(env!("CARGO_BIN_EXE_tidegate"), &name).unwrap();
    let (_directory, rules) =
        rule_file("domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}]");
    let port = free_port();
    let mut command = Command::new(name);
    command.env_clear().env("TIDEGATE_RULES", rules).env("PORT", port.to_string());
    command.env("DEBUG_PORT", "0").env("GRPC_PORT", free_port().to_string());
    let mut process = Process::start(command);
    process.line_with("tidegate: serving");
    assert_eq!(http(SocketAddr::from(([127, 0, 0, 1], port)), "GET", "/healthcheck", "").status, 200);
}

#[test]
fn the_compose_file_names_what_is_there() {
    let compose = yaml(&read("docker-compose.yml"));
    let services = compose["services"].as_object().expect("services");
    let is_service = |host: &str| assert!(services.contains_key(host), "there is no service {host}");
    let mut regions = BTreeSet::new();
    for (name, service) in services {
        for volume in list(service, "/volumes") {
            let source = volume.as_str().unwrap().split(':').next().unwrap();
            assert!(Path::new(ROOT).join(source).exists(), "{name}: {source}");
        }
        match &service["depends_on"] {
            Value::Object(others) => others.keys().for_each(|other| is_service(other)),
            others => list(others, "").for_each(|other| is_service(other.as_str().unwrap())),
        }
        if service["image"] != "tidegate:demo" {
            continue;
        }
        let mut args: Vec<&str> = list(service, "/command").skip(1).map(|arg| arg.as_str().unwrap()).collect();
        if args.is_empty() {
            args.push("serve");
        }
        let ran = run(tidegate(&args).arg("--help"));
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stderr);
        let settings = service["environment"].as_object().expect("settings");
        for (setting, value) in settings {
            assert!(names_variable(&ran.stdout, setting), "{name}: {setting}");
            let value = value.as_str().expect("text: Compose would write a number or a boolean its own way");
            match setting.as_str() {
                "REDIS_URL" => is_service(value.split(':').next().unwrap()),
                "MYSQL_URL" => is_service(value.split(['@', ':', '/']).nth(5).unwrap()),
                "TIDEGATE_RULES" => {
                    let is_mounted = |volume: &Value| volume.as_str().unwrap().split(':').nth(1) == Some(value);
                    assert!(list(service, "/volumes").any(is_mounted), "{name}: {value}");
                }
                "REGION" => {
                    regions.insert(value.to_owned());
                }
                _ => {}
            }
        }
        if args == ["serve"] {
            let grace = humantime::parse_duration(service["stop_grace_period"].as_str().unwrap()).unwrap();
            assert!(grace > Duration::from_secs(2 + 10 + 4), "{name}: drain delay, drain timeout, last words");
            let all = settings["TIDEGATE_REGIONS"].as_str().unwrap();
            assert!(all.split(',').any(|region| settings["REGION"] == region), "{name}");
        }
    }
    assert_eq!(regions.len(), 2, "{regions:?}");

    let ran = run(&mut tidegate(&["check", "--rules", "demo/rules"]));
    assert!(ran.code == Some(0) && ran.stdout.contains("0 warnings"), "{ran:?}");
    let envoy = read("demo/envoy.yaml");
    Envoy::validate(&envoy).expect("Envoy accepts it");
    let asked = envoy.split("address: ").filter_map(|rest| rest.split([',', '}']).next());
    asked.filter(|host| host.starts_with("tidegate")).for_each(is_service);
    for port in list(&services["envoy"], "/ports") {
        let inside = port.as_str().unwrap().rsplit(':').next().unwrap();
        assert!(
            envoy.contains(&format!("{{address: 0.0.0.0, port_value: {inside}}}")),
            "Envoy does not listen on {inside}"
        );
    }
}
