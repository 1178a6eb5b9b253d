//! Rules that change while the service runs: however they change they come into force, and bad ones change nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::harness::{
    Client, PATIENCE, Process, Service, answer, ask, ask_one, descriptor, descriptor_for, run, said, tidegate,
};
use crate::support::promise::{Promise, print};

/// By when a change is in force: the promise.
const LIVE_WITHIN: Duration = Duration::from_secs(2);

fn rules(limit: u32) -> String {
    format!("{{domain: d, descriptors: [{{key: a, rate_limit: {{requests_per_unit: {limit}, unit: year}}}}]}}\n")
}

/// Replaces a file in one step.
fn rename_into(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, file).unwrap();
}

fn serve(rules: &Path) -> Service {
    serve_with(rules, &[])
}

fn serve_with(rules: &Path, env: &[(&str, &str)]) -> Service {
    let mut command = tidegate(&["serve", "--rules"]);
    command.arg(rules).args(["--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1", "--grpc-port", "0"]);
    command.envs(env.iter().copied());
    Service::of(command)
}

/// Waits until a peek sees this many left, and says how long it took. Peeks do not count.
async fn until_left(client: &mut Client, left: u32) -> Duration {
    let began = Instant::now();
    let wanted = format!("OK: OK {left}");
    loop {
        let heard = said(client, ask([descriptor_for("a=x", 0)])).await;
        if heard == wanted {
            return began.elapsed();
        }
        assert!(began.elapsed() < PATIENCE, "{left} left in the end, but {heard}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Serves a file, changes it, and expects the change to be in force, with the counts of before.
async fn assert_followed(rules_at: &Path, env: &[(&str, &str)], change: impl FnOnce()) {
    eprintln!("{}", followed("a change is in force", rules_at, env, change).await);
}

async fn followed(what: &str, rules_at: &Path, env: &[(&str, &str)], change: impl FnOnce()) -> Promise {
    let service = serve_with(rules_at, env);
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 9");
    change();
    Promise::within(what, LIVE_WITHIN, until_left(&mut client, 19).await)
}

/// However rules change, they are in force soon.
pub async fn changes() -> Vec<Promise> {
    let (written, replaced, moved) = (Directory::new(), Directory::new(), Directory::new());
    vec![
        followed("a file that is written over is in force", written.path(), &[], || {
            fs::write(written.file(), rules(20)).unwrap();
        })
        .await,
        followed("a file that is replaced is in force", &replaced.file(), &[], || {
            rename_into(&replaced.file(), &rules(20));
        })
        .await,
        followed("a file that takes another's place is in force", moved.path(), &[], || {
            fs::write(moved.path().join("more.yml"), rules(20)).unwrap();
            fs::remove_file(moved.file()).unwrap();
        })
        .await,
    ]
}

struct Directory(TempDir);

impl Directory {
    /// A directory with rules of limit 10 in it.
    fn new() -> Directory {
        let directory = Directory(tempfile::tempdir().unwrap());
        fs::write(directory.file(), rules(10)).unwrap();
        directory
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self) -> PathBuf {
        self.path().join("rules.yaml")
    }
}

#[tokio::test]
async fn files_that_are_written_over_replaced_or_come_and_go_are_read_again() {
    print(&changes().await);
}

/// A mounted ConfigMap: files are links through `..data`, which is a link to the directory in force.
fn config_map(mount: &Path, version: &str, text: &str) {
    fs::create_dir(mount.join(version)).unwrap();
    fs::write(mount.join(version).join("rules.yaml"), text).unwrap();
    symlink(version, mount.join("..data_tmp")).unwrap();
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
}

#[tokio::test]
async fn a_config_map_is_followed_through_its_links() {
    let mount = tempfile::tempdir().unwrap();
    config_map(mount.path(), "..2026_11_16_1", &rules(10));
    symlink("..data/rules.yaml", mount.path().join("rules.yaml")).unwrap();
    assert_followed(mount.path(), &[], || {
        config_map(mount.path(), "..2026_11_16_2", &rules(20));
        fs::remove_dir_all(mount.path().join("..2026_11_16_1")).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_root_that_is_a_link_is_followed() {
    let versions = tempfile::tempdir().unwrap();
    for (version, limit) in [("v1", 10), ("v2", 20)] {
        let directory = versions.path().join(version).join("ratelimit/config");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("rules.yaml"), rules(limit)).unwrap();
    }
    let root = versions.path().join("current");
    symlink("v1", &root).unwrap();
    let mut command = tidegate(&["--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1", "--grpc-port", "0"]);
    command.env("RUNTIME_ROOT", &root).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    let service = Service::of(command);
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 9");
    symlink("v2", versions.path().join("next")).unwrap();
    fs::rename(versions.path().join("next"), &root).unwrap();
    until_left(&mut client, 19).await;
}

/// INV-8.
#[tokio::test]
async fn a_swap_that_is_half_done_changes_nothing() {
    let mount = tempfile::tempdir().unwrap();
    config_map(mount.path(), "..1", &rules(10));
    symlink("..data/rules.yaml", mount.path().join("rules.yaml")).unwrap();
    let mut service = serve(mount.path());
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 9");
    // The link points at a directory that is not there yet.
    symlink("..2", mount.path().join("..half")).unwrap();
    fs::rename(mount.path().join("..half"), mount.path().join("..data")).unwrap();
    service.process.line_with("can't be read");
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 8");
    assert_eq!(service.metric("tidegate_config_last_load_ok"), Some(0.0));
    fs::create_dir(mount.path().join("..2")).unwrap();
    fs::write(mount.path().join("..2/rules.yaml"), rules(20)).unwrap();
    until_left(&mut client, 18).await;
    assert_eq!(service.metric("tidegate_config_last_load_ok"), Some(1.0));
}

/// Two rules that any ruleset has in the same version: a request that saw two rulesets would show two versions.
fn versioned(version: u32) -> String {
    let rule = |key: &str| {
        format!("  - {{key: {key}, rate_limit: {{requests_per_unit: 4000000000, unit: year, name: v{version}}}}}\n")
    };
    format!("domain: d\ndescriptors:\n{}{}", rule("a"), rule("b"))
}

/// Calls until it is over; every answer must be of one version. Returns how many calls, and the versions seen.
async fn calls(service: Client, is_over: Arc<AtomicBool>) -> (u64, Vec<String>) {
    let mut client = service;
    let mut count = 0;
    let mut versions: Vec<String> = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let response = answer(&mut client, ask([descriptor("a=x"), descriptor("b=y")])).await;
        let names: Vec<&str> = response
            .statuses
            .iter()
            .map(|status| status.current_limit.as_ref().expect("limited").name.as_str())
            .collect();
        assert_eq!(names[0], names[1], "one request, one ruleset");
        if !versions.iter().any(|version| version == names[0]) {
            versions.push(names[0].to_owned());
        }
        count += 1;
    }
    (count, versions)
}

/// INV-8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_reloads_a_second_fail_no_call_and_mix_no_rulesets() {
    let directory = Directory::new();
    fs::write(directory.file(), versioned(0)).unwrap();
    let service = serve(&directory.file());
    let is_over = Arc::new(AtomicBool::new(false));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        callers.spawn(calls(service.client().await, is_over.clone()));
    }
    for version in 1..=300 {
        rename_into(&directory.file(), &versioned(version));
        // A shell for each signal would be too slow a hundred times a second, so every other change is left to be noticed.
        if version % 2 == 0 {
            service.process.signal("HUP");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut client = service.client().await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let response = answer(&mut client, ask_one("a=x")).await;
        if response.statuses[0].current_limit.as_ref().is_some_and(|limit| limit.name == "v300") {
            break;
        }
        assert!(Instant::now() < deadline, "the last version is in force in the end");
    }
    is_over.store(true, Ordering::Relaxed);
    let mut versions = 0;
    while let Some(caller) = callers.join_next().await {
        let (count, seen) = caller.expect("no call failed");
        assert!(count > 0);
        versions = versions.max(seen.len());
    }
    let status = service.page_json("/config/status");
    let generation = status["generation"].as_u64().expect("a number");
    eprintln!("{generation} rulesets came into force, callers saw {versions}");
    assert!(generation > 1 && versions > 1, "{generation} rulesets came into force, callers saw {versions}");
    assert_eq!(status["loads_failed"], 0);
    // A call of the first version and the last: the counts are one.
    let total = service.metric("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\"}").expect("counted");
    let decided = service.metric("tidegate_decisions_total{outcome=\"ok\"}").expect("counted");
    assert_eq!(total, decided, "counters outlive reloads");
}

#[test]
fn every_refused_file_is_named_everywhere_and_changes_nothing() {
    let directory = Directory::new();
    let file = directory.file();
    let mut service = serve(&file);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"x"}]}]}"#;
    let mut before = Value::Null;
    let mut refused = 0;
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures/bad-rules");
    let mut bad: Vec<PathBuf> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    bad.sort();
    for source in bad.iter().filter(|source| source.is_file()) {
        fs::copy(source, file.with_extension("new")).unwrap();
        fs::rename(file.with_extension("new"), &file).unwrap();
        let checked = run(&mut tidegate(&["check", "--output", "json", "--rules", file.to_str().unwrap()]));
        let expected: Value = serde_json::from_str(&checked.stdout).unwrap();
        assert_eq!(expected["ok"], false, "{}", source.display());
        let mut expected = expected["problems"].as_array().unwrap().clone();
        expected.sort_by_key(|problem| problem["severity"] != "error");
        service.process.signal("HUP");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = service.page_json("/config/status");
            if status["last_attempt"]["problems"].as_array() == Some(&expected) {
                assert_eq!(status["last_attempt"]["ok"], false);
                assert_eq!(status["generation"], 1);
                break;
            }
            assert!(Instant::now() < deadline, "{}: {expected:?} in the end, but {status}", source.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        if before != Value::from(expected.clone()) {
            service.process.line_with("the rules were not reloaded");
        }
        let first = &expected[0];
        let place = format!(
            "tidegate_config_error{{file=\"{}\",line=\"{}\",column=\"{}\"}}",
            file.display(),
            first["line"],
            first["column"]
        );
        assert_eq!(service.metric(&place), Some(1.0), "{place}");
        assert_eq!(service.metric("tidegate_config_last_load_ok"), Some(0.0));
        before = expected.into();
        refused += 1;
    }
    assert!(refused > 200, "{refused} files");
    assert!(service.metric("ratelimit_service_config_load_error").unwrap() >= f64::from(refused));
    assert_eq!(service.metric("tidegate_config_generation"), Some(1.0));
    assert!(service.post("/json", body).body.contains("\"limitRemaining\":9"), "the rules from before are in force");
}

#[tokio::test]
async fn a_huge_file_and_an_alias_bomb_are_refused_by_name() {
    let directory = Directory::new();
    let mut service = serve(directory.path());
    let mut client = service.client().await;
    let before = service.process.memory("VmRSS");
    let huge = directory.path().join("huge.yaml");
    fs::File::create(&huge).unwrap().set_len(100 * 1024 * 1024).unwrap();
    let line = service.process.line_with("larger than 32 MiB");
    assert!(line.contains("huge.yaml"), "{line}");
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 9");
    fs::remove_file(&huge).unwrap();
    let mut bomb = "domain: bomb\nx0: &x0 [lol, lol]\n".to_owned();
    for level in 1..30 {
        bomb += &format!("x{level}: &x{level} [*x{0}, *x{0}, *x{0}, *x{0}, *x{0}, *x{0}, *x{0}, *x{0}]\n", level - 1);
    }
    bomb += "descriptors: *x29\n";
    rename_into(&directory.path().join("bomb.yaml"), &bomb);
    let line = service.process.line_with("bomb.yaml");
    assert!(line.contains("error"), "{line}");
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 8");
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    assert!(grown < 128 * 1024 * 1024, "grown by {grown} bytes");
}

#[tokio::test]
async fn a_forced_start_waits_for_rules() {
    let directory = tempfile::tempdir().unwrap();
    let env = [("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")];
    let service = serve_with(directory.path(), &env);
    let mut client = service.client().await;
    let refused = client.should_rate_limit(ask_one("a=x")).await.expect_err("no rules");
    assert_eq!((refused.code(), refused.message()), (tonic::Code::Unavailable, "no rate limit configuration loaded"));
    assert_eq!(service.get("/healthcheck").status, 200, "a liveness probe must not kill it");
    assert_eq!(service.metric("tidegate_errors_total{reason=\"no_rules\"}"), Some(1.0));
    assert_eq!(service.page("/rlconfig"), "");
    assert_eq!(service.page_json("/config/status")["generation"], 0);

    let strict = serve_with(directory.path(), &[env[0], ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    assert_eq!(strict.get("/readyz").status, 500);
    assert_eq!(strict.get("/livez").status, 200);

    fs::write(directory.path().join("rules.yaml"), rules(10)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while strict.get("/readyz").status != 200 || service.metric("tidegate_config_generation") != Some(1.0) {
        assert!(Instant::now() < deadline, "the first rules are noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 9");
}

#[tokio::test]
async fn rules_that_can_not_be_read_any_more_are_not_taken_for_no_rules() {
    let directory = Directory::new();
    let other = directory.path().join("other.yaml");
    let hidden = directory.path().join("..hidden");
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join("other.yaml"), rules(10).replace("domain: d", "domain: e")).unwrap();
    symlink("..hidden/other.yaml", &other).unwrap();
    let mut service = serve(directory.path());
    assert_eq!(service.metric("tidegate_config_domains"), Some(2.0));
    fs::rename(&hidden, directory.path().join("..elsewhere")).unwrap();
    service.process.line_with("other.yaml:1:1: error: can't be read");
    assert_eq!(service.metric("tidegate_config_last_load_ok"), Some(0.0));
    assert_eq!(service.metric("tidegate_config_domains"), Some(2.0), "both domains are still limited");
    fs::rename(directory.path().join("..elsewhere"), &hidden).unwrap();
    service.process.line_with("the rules were reloaded and are good again");
}

#[tokio::test]
async fn a_pipe_in_place_of_the_rules_does_not_end_all_reloading() {
    let directory = Directory::new();
    let mut service = serve(&directory.file());
    let mut client = service.client().await;
    fs::remove_file(directory.file()).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(directory.file()).status().unwrap().success());
    service.process.line_with("it is not a regular file");
    rename_into(&directory.file(), &rules(20));
    until_left(&mut client, 20).await;
}

#[test]
fn a_signal_during_the_first_load_does_not_end_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let rule = |n: usize| format!("- {{key: k{n}, rate_limit: {{requests_per_unit: 1, unit: year}}}}\n");
    let text = format!("domain: d\ndescriptors:\n{}", (0..20_000).map(rule).collect::<String>());
    fs::write(directory.path().join("rules.yaml"), text).unwrap();
    let mut command = tidegate(&["serve", "--rules"]);
    command.arg(directory.path()).args(["--port", "0", "--grpc-port", "0"]).env("LOG_LEVEL", "debug");
    let mut process = Process::start(command);
    // Said once signals are taken, before the rules are read.
    process.line_with("reading the rules");
    process.signal("HUP");
    process.line_with("serving");
}
