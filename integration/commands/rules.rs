//! The commands as operators type them: what they print, and how they end.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::harness::{Service, answer, ask_one, free_port, in_short, rule_file, run, tidegate};

const RULES: &str = "\
domain: edge
descriptors:
  - {key: api_key, value: alice, rate_limit: {requests_per_unit: 100, unit: second, name: gold}}
  - {key: api_key, value: \"al*\", rate_limit: {requests_per_unit: 50, window: 90s}}
  - {key: api_key, rate_limit: {requests_per_unit: 5, unit: second}}
  - key: path
    descriptors:
      - {key: method, value: POST, rate_limit: {requests_per_unit: 7, unit: hour, algorithm: gcra, burst: 3}}
  - {key: health, rate_limit: {unlimited: true}}
";

/// An error line of `check`: `file:line:column: error: message`.
fn error_line<'l>(line: &'l str, file: &str) -> Option<(usize, usize, &'l str)> {
    let rest = line.strip_prefix(file)?.strip_prefix(':')?;
    let (place, message) = rest.split_once(": error: ")?;
    let (line, column) = place.split_once(':')?;
    Some((line.parse().ok()?, column.parse().ok()?, message))
}

/// A line at the top of a bad file: `# expect LINE:COLUMN MESSAGE-PART`.
fn expectation(line: &str) -> Option<(usize, usize, &str)> {
    let (place, part) = line.strip_prefix("# expect ")?.split_once(' ')?;
    let (line, column) = place.split_once(':')?;
    Some((line.parse().ok()?, column.parse().ok()?, part))
}

#[test]
fn check_finds_nothing_wrong_with_the_rules_that_come_along() {
    let ran = run(&mut tidegate(&["check", "--rules", "config"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let last = ran.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("ok: ") && last.ends_with(", 0 warnings"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("error"), "{}", ran.stdout);
    let without_path = run(&mut tidegate(&["check"]));
    assert_eq!((without_path.code, without_path.stdout), (Some(0), ran.stdout), "config/ is where it looks by itself");
}

#[test]
fn check_reports_exactly_the_errors_that_a_bad_file_has() {
    let bad = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fixtures/bad-rules");
    let mut names: Vec<String> =
        fs::read_dir(bad).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".yaml"));
    names.sort();
    assert!(names.len() >= 40, "only {} bad files", names.len());
    let mut wrong = Vec::new();
    for name in names {
        let file = format!("integration/fixtures/bad-rules/{name}");
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&file)).unwrap();
        let expected: Vec<_> = text.lines().filter_map(expectation).collect();
        let ran = run(&mut tidegate(&["check", "--rules", &file]));
        let mut found: Vec<_> = ran.stdout.lines().filter_map(|line| error_line(line, &file)).collect();
        let mut missing = Vec::new();
        for (line, column, part) in &expected {
            let is_it = |(l, c, message): &(usize, usize, &str)| l == line && c == column && message.contains(part);
            match found.iter().position(is_it) {
                Some(index) => drop(found.remove(index)),
                None => missing.push((line, column, part)),
            }
        }
        if ran.code != Some(1) || expected.is_empty() || !missing.is_empty() || !found.is_empty() {
            wrong.push(format!("{file}: exit {:?}, missing {missing:?}, unexpected {found:?}", ran.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn check_reports_all_files_of_a_directory_in_one_go() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("a.yaml", "domain: a\ndescriptors:\n  - {key: x, rate_limit: {requests_per_unit: 1, unit: decade}}\n");
    write("b.yml", "domain: ''\ndescriptors:\n  - {key: x, shade: 1}\n");
    write("c.yaml", "domain: c\ndescriptors: []\n");
    write("d.yaml", "domain: [\n");
    write("notes.txt", "this is not YAML: [\n");
    let ran = run(&mut tidegate(&["check", "--rules", path]));
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let at = |name: &str| {
        let file = format!("{path}/{name}");
        let errors = ran.stdout.lines().filter_map(|line| error_line(line, &file));
        errors.map(|(line, column, _)| (line, column)).collect::<BTreeSet<_>>()
    };
    assert_eq!(at("a.yaml"), BTreeSet::from([(3, 55)]), "{}", ran.stdout);
    assert_eq!(at("b.yml"), BTreeSet::from([(1, 9), (3, 14)]), "{}", ran.stdout);
    assert_eq!(at("c.yaml"), BTreeSet::new());
    assert_eq!(at("d.yaml").len(), 1, "{}", ran.stdout);
    assert!(!ran.stdout.contains("notes.txt"), "{}", ran.stdout);
    assert!(ran.stdout.lines().last().unwrap().starts_with("not loaded: 4 errors"), "{}", ran.stdout);
    let helps = ran.stdout.lines().filter(|line| line.trim_start().starts_with("help: ")).count();
    assert_eq!(helps, 4, "every error says what to write instead: {}", ran.stdout);
}

#[test]
fn check_prints_json_for_programs() {
    let (_directory, good) = rule_file(RULES);
    let ran = run(&mut tidegate(&["check", "--rules", &good, "--output", "json"]));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(ran.code, Some(0));
    assert_eq!(document["ok"], json!(true), "{document}");
    assert_eq!((&document["domains"], &document["rules"], &document["errors"]), (&json!(1), &json!(5), &json!(0)));

    let (_directory, bad) = rule_file("domain: edge\nshade: 1\n");
    let ran = run(&mut tidegate(&["check", "--rules", &bad, "--output", "json"]));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((ran.code, &document["ok"], &document["errors"]), (Some(1), &json!(false), &json!(1)));
    let problem = &document["problems"][0];
    assert_eq!(problem["file"], json!(bad));
    assert_eq!((&problem["line"], &problem["column"]), (&json!(2), &json!(1)));
    assert_eq!(problem["severity"], "error");
    assert!(problem["message"].as_str().unwrap().contains("unknown key 'shade'"), "{problem}");
    assert!(!problem["help"].as_str().unwrap().is_empty());
}

#[test]
fn check_accepts_what_the_reference_accepts_when_asked_to() {
    let (_directory, file) = rule_file(
        "domain: d\ndescriptors:\n  - {key: a, rate_limit: {requests_per_unit: 1, unit: day, shadow_mode: true}}\n",
    );
    let strict = run(&mut tidegate(&["check", "--rules", &file]));
    assert_eq!(strict.code, Some(1), "{}", strict.stdout);
    for lenient in [
        run(&mut tidegate(&["check", "--rules", &file, "--lenient-rules"])),
        run(tidegate(&["check", "--rules", &file]).env("TIDEGATE_LENIENT_RULES", "true")),
    ] {
        assert_eq!(lenient.code, Some(0), "{}", lenient.stdout);
        assert!(lenient.stdout.contains(": warning: "), "{}", lenient.stdout);
        assert!(lenient.stdout.contains("ok: 1 rule in 1 domain, 1 warning"), "{}", lenient.stdout);
    }
}

#[test]
fn check_refuses_what_serve_refuses_in_the_same_environment() {
    let rule = |fields: &str| {
        rule_file(&format!(
            "domain: d\ndescriptors:\n  - {{key: a, rate_limit: {{requests_per_unit: 1, unit: day{fields}}}}}\n"
        ))
    };
    let (_directory, strict) = rule(", scope: strict");
    let regions = [("REGION", "eu"), ("TIDEGATE_REGIONS", "eu,us")];
    for (file, env, part) in [
        (&strict, regions.to_vec(), "STRICT_REDIS_URL"),
        (&strict, vec![("REGION", "ap"), regions[1]], "is 'ap', which is none of --regions"),
        (&strict, vec![("REDIS_URL", "nowhere")], "has no port"),
        (&strict, vec![("MYSQL_URL", "mysql://h/d")], "names no user"),
        (&strict, vec![("TIDEGATE_SECRET_FILE", "/nowhere")], "can't be read"),
    ] {
        let said = ["serve", "check"].map(|command| {
            let mut command = tidegate(&[command, "--rules", file]);
            let ran = run(command.envs(env.iter().copied()));
            assert_eq!(ran.code, Some(1), "{env:?}: {ran:?}");
            format!("{}{}", ran.stdout, ran.stderr)
        });
        assert!(said.iter().all(|said| said.contains(part)), "{part}: {said:?}");
    }
    let (_directory, file) = rule(", scope: global");
    let check = |env: &[(&str, &str)], flags: &[&str]| {
        run(tidegate(&["check", "--rules", &file]).args(flags).envs(env.iter().copied()))
    };
    let redis = [("REDIS_URL", "127.0.0.1:1")];
    let ran = check(&redis, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("warning: scope: global of rule a holds for the region only"), "{ran:?}");
    assert!(ran.stdout.ends_with("ok: 1 rule in 1 domain, 1 warning\n"), "{ran:?}");
    let document: Value = serde_json::from_str(&check(&redis, &["--output", "json"]).stdout).expect("JSON");
    assert_eq!((&document["warnings"], document["remarks"].as_array().map(Vec::len)), (&json!(1), Some(1)));
    let ran = check(&[], &[]);
    assert!(ran.stdout.ends_with("0 warnings\n"), "nobody said where the rules are to hold: {ran:?}");
}

#[test]
fn check_says_when_there_is_nothing_to_check() {
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().to_str().unwrap();
    let ran = run(&mut tidegate(&["check", "--rules", path]));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains(&format!("{path}:1:1: error: no rule file found")), "{}", ran.stdout);
    let missing = format!("{path}/nowhere.yaml");
    let ran = run(&mut tidegate(&["check", "--rules", &missing]));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains(&format!("{missing}:1:1: error: can't be read")), "{}", ran.stdout);
}

#[test]
fn explain_shows_the_rule_and_what_was_passed_over() {
    let (_directory, file) = rule_file(RULES);
    let explained = |descriptor: &str| {
        let ran = run(&mut tidegate(&["explain", "--rules", &file, "--domain", "edge", descriptor]));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{descriptor}");
        ran.stdout
    };
    let has = |text: &str, parts: &[&str]| {
        for part in parts {
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
    };
    let exact = explained("api_key=alice");
    has(&exact, &["-> api_key=alice", "the value is written in the rule", "limit: 100 per second", "name gold"]);
    has(&exact, &[&format!("api_key=al*  passed over: an exact value comes before wildcards ({file}:4:5)")]);
    has(&exact, &[&format!("api_key  passed over: an exact value comes before the key alone ({file}:5:5)")]);
    has(&exact, &[&format!("rule api_key=alice at {file}:3:"), "all requests of this rule together"]);
    let wildcard = explained("api_key=albert");
    has(&wildcard, &["-> api_key=al*", "limit: 50 per 1m 30s", "api_key=alice  passed over: another value"]);
    has(&wildcard, &["[\"albert\"]", "apart"]);
    let open = explained("api_key=bob");
    has(&open, &["-> api_key  (", "any value", "api_key=al*  passed over: the wildcard does not match"]);
    let nested = explained("path=/v1,method=POST");
    has(&nested, &["-> path", "limit: 7 per hour, gcra, burst 3", "\"/v1\""]);
    has(&explained("health=x"), &["unlimited"]);
}

#[test]
fn explain_says_why_there_is_no_rule() {
    let (_directory, file) = rule_file(RULES);
    let explained = |domain: &str, descriptors: &[&str]| {
        run(tidegate(&["explain", "--rules", &file, "--domain", domain]).args(descriptors))
    };
    for (descriptor, reason) in [
        ("color=red", "the key color is not among those of this level"),
        ("path=/v1", "path has no rate_limit of its own"),
        ("path=/v1,method=GET", "no rule for the key method matches the value 'GET'"),
        ("api_key=alice,more=x", "api_key=alice has no nested descriptors"),
    ] {
        let ran = explained("edge", &[descriptor]);
        assert_eq!(ran.code, Some(0), "{descriptor}");
        assert!(ran.stdout.contains("no rule: ") && ran.stdout.contains(reason), "{descriptor}: {}", ran.stdout);
    }
    let unknown = explained("elsewhere", &["api_key=alice"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""));
    assert!(unknown.stderr.contains("no domain 'elsewhere' in the rules: there are edge"), "{}", unknown.stderr);
    let malformed = explained("edge", &["api_key"]);
    assert_eq!(malformed.code, Some(2));
    assert!(malformed.stderr.contains("key=value"), "{}", malformed.stderr);
    let (_directory, bad) = rule_file("domain: ''\n");
    let ran = run(&mut tidegate(&["explain", "--rules", &bad, "--domain", "edge", "a=b"]));
    assert_eq!(ran.code, Some(1));
}

#[test]
fn explain_prints_json_for_programs() {
    let (_directory, file) = rule_file(RULES);
    let mut command = tidegate(&["explain", "--rules", &file, "--domain", "edge", "--output", "json"]);
    let ran = run(command.args(["api_key=albert", "color=red"]));
    assert_eq!(ran.code, Some(0));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let [matched, unmatched] = document.as_array().expect("a list").as_slice() else { panic!("not two: {document}") };
    assert_eq!(matched["descriptor"], json!([{"key": "api_key", "value": "albert"}]));
    assert_eq!(matched["rule"]["id"], "api_key=al*");
    assert_eq!(matched["rule"]["limits"][0]["requests_per_unit"], 50);
    assert_eq!(matched["rule"]["limits"][0]["window_ms"], 90_000);
    assert_eq!(matched["identifier"], json!(["albert"]));
    let passed: Vec<&Value> =
        matched["steps"][0]["passed_over"].as_array().unwrap().iter().map(|p| &p["path"]).collect();
    assert_eq!(passed, ["api_key=alice", "api_key"]);
    assert_eq!((&unmatched["rule"], &unmatched["identifier"]), (&Value::Null, &Value::Null));
    assert!(unmatched["outcome"].as_str().unwrap().starts_with("no rule: "));
}

#[test]
fn serve_with_bad_rules_says_all_that_is_wrong_before_it_opens_a_port() {
    let (_directory, file) = rule_file(
        "domain: d\nshade: 1\ndescriptors:\n  - {key: a, rate_limit: {requests_per_unit: 1, unit: decade}}\n",
    );
    // Ports that can't be opened: whoever tries would say so.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = tidegate(&["serve", "--rules", &file, "--host", "127.0.0.1", "--grpc-host", "127.0.0.1"]);
    let ran = run(command.args(["--port", &port, "--grpc-port", &port]));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains(&format!("{file}:2:1: error: ")), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("{file}:4:55: error: ")), "{}", ran.stderr);
    assert!(!ran.stderr.contains("can't open"), "{}", ran.stderr);

    let empty = tempfile::tempdir().unwrap();
    let ran = run(&mut tidegate(&["serve", "--rules", empty.path().to_str().unwrap(), "--port", &port]));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("no rule file found"), "{}", ran.stderr);
}

#[test]
fn serve_names_the_setting_that_can_not_be_used() {
    let (_directory, file) = rule_file(RULES);
    let serve = |flags: &[&str], env: &[(&str, &str)]| {
        let mut command = tidegate(&["serve", "--rules", &file]);
        let ran = run(command.args(flags).envs(env.iter().copied()));
        assert!(ran.code.is_some_and(|code| code != 0), "{flags:?} {env:?}: {:?}", ran.code);
        ran.stderr
    };
    type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str);
    let cases: [Case; 19] = [
        (&["--keys-max", "0"], &[], "--keys-max (TIDEGATE_KEYS_MAX) is 0: write a number from 1 to"),
        (&[], &[("TIDEGATE_MAX_IN_FLIGHT", "0")], "--max-in-flight (TIDEGATE_MAX_IN_FLIGHT) is 0"),
        (&["--max-descriptors", "0"], &[], "--max-descriptors (TIDEGATE_MAX_DESCRIPTORS) is 0"),
        (&["--max-message-bytes", "1"], &[], "--max-message-bytes (TIDEGATE_MAX_MESSAGE_BYTES) is 1"),
        (&[], &[("GRPC_HOST", "example.com")], "--grpc-host (GRPC_HOST) is 'example.com'"),
        (&["--limit-reset-header", "a b"], &[], "--limit-reset-header (LIMIT_RESET_HEADER) is 'a b'"),
        (&["--drain-delay", "soon"], &[], "500ms, 2s"),
        (&[], &[("SHADOW_MODE", "maybe")], "write true or false"),
        (&["--grpc-port", "70000"], &[], "70000"),
        (&["--no-such-flag"], &[], "--no-such-flag"),
        (
            &[],
            &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_URL", "nowhere")],
            "CONFIG_GRPC_XDS_SERVER_URL is 'nowhere', which is no host and port",
        ),
        (&[], &[("CONFIG_TYPE", "HTTP")], "'HTTP'"),
        (&[], &[("PORT", "abc")], "The value is that of the variable PORT"),
        (&[], &[("GRPC_UDS", "@name")], "which is an abstract socket"),
        (&[], &[("TIDEGATE_DRAIN_DELAY", "99999999999h")], "write"),
        (&[], &[("NEAR_LIMIT_RATIO", "80")], "write a number from 0 to 1"),
        (&[], &[("USE_PROMETHEUS", "1"), ("PROMETHEUS_PATH", "metrics")], "(PROMETHEUS_PATH) is 'metrics'"),
        (&[], &[("PROMETHEUS_ADDR", "9090")], "write :9090"),
        (&[], &[("EXTRA_TAGS", "domain:x")], "choose another name"),
    ];
    for (flags, env, part) in cases {
        let said = serve(flags, env);
        assert!(said.contains(part), "{flags:?} {env:?}: no '{part}' in {said}");
    }
}

#[test]
fn serve_says_which_port_is_taken() {
    let (_directory, file) = rule_file(RULES);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = address.port().to_string();
    for (flags, said) in [
        (
            ["--grpc-port", &port, "--port", "0"],
            format!("can't open the gRPC port {address}: choose another with --grpc-port"),
        ),
        (
            ["--grpc-port", "0", "--port", &port],
            format!("can't open the HTTP port {address}: choose another with --port"),
        ),
    ] {
        let mut command = tidegate(&["serve", "--rules", &file, "--host", "127.0.0.1", "--grpc-host", "127.0.0.1"]);
        let ran = run(command.args(flags));
        assert_eq!(ran.code, Some(1));
        assert!(ran.stderr.contains(&said), "no '{said}' in {}", ran.stderr);
    }
    let mut command = tidegate(&["serve", "--rules", &file, "--port", "0", "--grpc-port", "0", "--debug-port", &port]);
    let said = run(&mut command).stderr;
    assert!(said.contains(&format!("can't open the admin port {address}: choose another with --debug-port")), "{said}");
}

#[test]
fn help_mentions_every_flag_and_its_variable() {
    let rules = [
        "--rules TIDEGATE_RULES",
        "--runtime-root RUNTIME_ROOT",
        "--runtime-subdirectory RUNTIME_SUBDIRECTORY",
        "--runtime-appdirectory RUNTIME_APPDIRECTORY",
        "--runtime-watch-root RUNTIME_WATCH_ROOT",
        "--runtime-ignoredotfiles RUNTIME_IGNOREDOTFILES",
        "--merge-domain-config MERGE_DOMAIN_CONFIG",
        "--lenient-rules TIDEGATE_LENIENT_RULES",
    ];
    let serve = [
        "--config-type CONFIG_TYPE",
        "--force-start-without-initial-config FORCE_START_WITHOUT_INITIAL_CONFIG",
        "--healthy-with-at-least-one-config-loaded HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "--debug-host DEBUG_HOST",
        "--debug-port DEBUG_PORT",
        "--near-limit-ratio NEAR_LIMIT_RATIO",
        "--use-prometheus USE_PROMETHEUS",
        "--prometheus-addr PROMETHEUS_ADDR",
        "--prometheus-path PROMETHEUS_PATH",
        "--prometheus-response-time-as-milliseconds PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        "--extra-tags EXTRA_TAGS",
        "--host HOST",
        "--port PORT",
        "--grpc-host GRPC_HOST",
        "--grpc-port GRPC_PORT",
        "--grpc-max-connection-age GRPC_MAX_CONNECTION_AGE",
        "--grpc-max-connection-age-grace GRPC_MAX_CONNECTION_AGE_GRACE",
        "--keys-max TIDEGATE_KEYS_MAX",
        "--max-in-flight TIDEGATE_MAX_IN_FLIGHT",
        "--max-connections TIDEGATE_MAX_CONNECTIONS",
        "--max-message-bytes TIDEGATE_MAX_MESSAGE_BYTES",
        "--max-arriving-bytes TIDEGATE_MAX_ARRIVING_BYTES",
        "--max-descriptors TIDEGATE_MAX_DESCRIPTORS",
        "--max-entries TIDEGATE_MAX_ENTRIES",
        "--shadow-mode SHADOW_MODE",
        "--quota-mode QUOTA_MODE",
        "--limit-response-headers-enabled LIMIT_RESPONSE_HEADERS_ENABLED",
        "--limit-limit-header LIMIT_LIMIT_HEADER",
        "--limit-remaining-header LIMIT_REMAINING_HEADER",
        "--limit-reset-header LIMIT_RESET_HEADER",
        "--limit-request-headers-enabled LIMIT_REQUEST_HEADERS_ENABLED",
        "--limit-request-limit-header LIMIT_REQUEST_LIMIT_HEADER",
        "--limit-request-remaining-header LIMIT_REQUEST_REMAINING_HEADER",
        "--limit-request-reset-header LIMIT_REQUEST_RESET_HEADER",
        "--retry-after TIDEGATE_RETRY_AFTER",
        "--response-dynamic-metadata RESPONSE_DYNAMIC_METADATA",
        "--drain-delay TIDEGATE_DRAIN_DELAY",
        "--drain-timeout TIDEGATE_DRAIN_TIMEOUT",
        "--log-level LOG_LEVEL",
        "--log-format LOG_FORMAT",
    ];
    let of = |command: &[&str], flags: &[&str]| {
        let ran = run(&mut tidegate(&[command, &["--help"]].concat()));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{command:?}");
        // Long descriptions are wrapped anywhere.
        let words: Vec<&str> = ran.stdout.split_whitespace().collect();
        let text = words.join(" ");
        for flag in flags {
            let (flag, variable) = flag.split_once(' ').unwrap_or((flag, ""));
            let has_flag = words.contains(&flag);
            let has_variable = variable.is_empty() || text.contains(&format!("[env: {variable}="));
            assert!(has_flag && has_variable, "{command:?} --help has no {flag} {variable}:\n{}", ran.stdout);
        }
    };
    of(&["serve"], &[&rules[..], &serve].concat());
    of(&[], &[&rules[..], &serve, &["serve", "check", "explain"]].concat());
    of(&["check"], &[&rules[..], &["--output", "--show-policy"]].concat());
    of(&["explain"], &[&rules[..], &["--output", "--domain"]].concat());
    let version = run(&mut tidegate(&["--version"]));
    assert_eq!(version.stdout, format!("tidegate {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn without_a_command_it_serves_as_the_environment_says() {
    let (_directory, file) =
        rule_file("domain: edge\ndescriptors:\n  - {key: api_key, rate_limit: {requests_per_unit: 100, unit: year}}\n");
    let [grpc_port, port, admin_port] = [free_port(), free_port(), free_port()];
    let mut command = tidegate(&[]);
    command.env("TIDEGATE_RULES", &file).env("HOST", "127.0.0.1").env("GRPC_HOST", "localhost");
    command.env("GRPC_PORT", grpc_port.to_string()).env("PORT", port.to_string());
    command.env("DEBUG_PORT", admin_port.to_string());
    command.env("LIMIT_RESPONSE_HEADERS_ENABLED", "T").env("LOG_LEVEL", "WARN").env("TIDEGATE_MAX_DESCRIPTORS", "1");
    let service = Service::of(command);
    assert_eq!((service.grpc.port(), service.http.port()), (grpc_port, port));
    assert_eq!(
        service.process.said,
        [format!(
            "tidegate: serving 1 rule in 1 domain on 127.0.0.1:{grpc_port} (gRPC), 127.0.0.1:{port} (HTTP) and \
             127.0.0.1:{admin_port} (admin)"
        )]
    );
    let mut client = service.client().await;
    let mut request = ask_one("api_key=alice");
    request.domain = "edge".into();
    let response = answer(&mut client, request.clone()).await;
    assert_eq!(in_short(&response), "OK: OK 99");
    assert_eq!(response.response_headers_to_add.len(), 3);
    request.descriptors.push(request.descriptors[0].clone());
    let refused = client.should_rate_limit(request).await.expect_err("two descriptors");
    assert!(refused.message().contains("at most 1 are allowed"), "{refused:?}");
}
