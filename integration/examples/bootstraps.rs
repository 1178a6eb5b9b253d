//! The bootstraps of `envoy/`: what their comments promise is what a client and an operator see.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::examples::files::{Example, ask_from, denied_after, retry_after, serve_all};
use crate::examples::files::{HERE, THERE};
use crate::support::certificates::Authority;
use crate::support::envoy_proxy::Envoy;
use crate::support::harness::{HttpAnswer, PATIENCE, Process, Service, tidegate, until, until_equal};
use crate::support::upstream::{BODY, Upstream};

fn get(envoy: &Envoy, path: &str) -> HttpAnswer {
    envoy.get(path, &[])
}

/// Ends a service that is not meant to come back.
fn kill(process: &mut Process) {
    process.signal("KILL");
    process.ends_within(PATIENCE).expect("it is gone");
}

#[test]
fn edge_limits_paths_keys_and_addresses_and_says_so() {
    let mut service = serve_all(&["--response-dynamic-metadata"]);
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let example = Example::read("edge.yaml").before(&upstream).asking(service.grpc).patient();
    let envoy = example.with_path("/dev/stdout", &log).start();

    // Another query is the same path, and so is another spelling.
    let mut query = 0;
    let denied = denied_after(10, || {
        query += 1;
        ask_from(&envoy, HERE, "POST", &format!("/api/orders?x={query}"), &[], "")
    });
    assert!((1..=120).contains(&retry_after(&denied)), "{denied:?}");
    let limits = denied.header("x-ratelimit-limit").unwrap_or_default();
    assert!(limits.contains("10;w=60;name=\"place_order\""), "{denied:?}");
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    for spelling in ["/api//orders", "/api/./orders", "/api/x/../orders"] {
        assert_eq!(ask_from(&envoy, HERE, "POST", spelling, &[], "").status, 429, "{spelling}");
    }
    let logged = until(PATIENCE, "the denial is logged", || {
        let log = std::fs::read_to_string(&log).ok()?;
        log.lines().find(|line| line.contains(" 429 ")).map(str::to_owned)
    });
    assert!(logged.contains("reason=over_limit rule=path=/api/orders/method=POST/remote_address"), "{logged}");
    assert!(logged.contains(" 429 RL "), "{logged}");

    // Nobody else is concerned: another method, another path, another address.
    let passed = get(&envoy, "/api/orders");
    assert_eq!((passed.status, passed.body.as_str()), (200, BODY));
    assert!(passed.header("x-ratelimit-remaining").is_some() && passed.header("retry-after").is_none(), "{passed:?}");
    assert_eq!(ask_from(&envoy, HERE, "POST", "/api/carts", &[], "").status, 200);
    assert_eq!(ask_from(&envoy, THERE, "POST", "/api/orders", &[], "").status, 200);

    // A key counts over all addresses, and what is searched below one path counts together.
    let mut next = 0;
    denied_after(100, || {
        next += 1;
        ask_from(&envoy, [127, 0, 1, next % 50 + 1], "GET", "/", &[("x-api-key", "alice")], "")
    });
    assert_eq!(ask_from(&envoy, [127, 0, 1, 99], "GET", "/", &[("x-api-key", "bob")], "").status, 200);
    let mut page = 0;
    denied_after(30, || {
        page += 1;
        ask_from(&envoy, [127, 0, 2, 1], "GET", &format!("/api/search/{page}"), &[], "")
    });

    // An address alone: 50 in a second and 300 in a minute. How fast this machine is decides which one comes first.
    let denied = (0..302).map(|_| ask_from(&envoy, [127, 0, 3, 1], "GET", "/", &[], "")).find(|one| one.status == 429);
    assert!(denied.is_some_and(|denied| retry_after(&denied) > 0), "one address is limited");

    // Health is never limited, and asks nobody. Without Tidegate everything passes.
    for _ in 0..60 {
        let healthy = ask_from(&envoy, [127, 0, 3, 1], "GET", "/healthz", &[], "");
        assert_eq!((healthy.status, healthy.header("x-ratelimit-limit")), (200, None));
    }
    kill(&mut service.process);
    assert_eq!(get(&envoy, "/healthz").status, 200);
    let unlimited = ask_from(&envoy, HERE, "POST", "/api/orders", &[], "");
    assert_eq!((unlimited.status, unlimited.header("x-ratelimit-limit")), (200, None), "it is not asked any more");
}

/// With two processes, one of which stops as it should: every request is still answered by one of them.
#[test]
fn edge_loses_no_answer_while_a_process_stops() {
    let (mut stops, stays) = (serve_all(&[]), serve_all(&[]));
    let upstream = Upstream::start();
    let example = Example::read("edge.yaml").before(&upstream).asking(stops.grpc).patient();
    let envoy = example.change(|config| add_endpoint(config, &stays)).start();
    let is_answered = |count: u8| {
        let answer = ask_from(&envoy, [127, 0, 4, count % 200 + 1], "GET", "/", &[], "");
        assert!(answer.header("x-ratelimit-limit").is_some(), "not limited: {answer:?}");
    };
    let asked = |service: &Service| service.metric("tidegate_decisions_total{outcome=\"ok\"}").unwrap_or_default();
    let mut count = 0u8;
    until(PATIENCE, "both are asked", || {
        count = count.wrapping_add(1);
        is_answered(count);
        (asked(&stops) > 0.0 && asked(&stays) > 0.0).then_some(())
    });
    stops.process.signal("TERM");
    let ended = until(PATIENCE, "it stops", || {
        for _ in 0..10 {
            count = count.wrapping_add(1);
            is_answered(count);
        }
        stops.process.ends_within(std::time::Duration::ZERO)
    });
    assert!(ended.success(), "{ended}");
    (0..50).for_each(is_answered);
}

fn add_endpoint(config: &mut Value, service: &Service) {
    let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
    let tidegate = clusters.iter_mut().find(|cluster| cluster["name"] == "tidegate").unwrap();
    let endpoints = tidegate["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array_mut().unwrap();
    let address = json!({"address": "127.0.0.1", "port_value": service.grpc.port()});
    endpoints.push(json!({"endpoint": {"address": {"socket_address": address}}}));
}

#[test]
fn sidecar_limits_callers_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("tidegate.sock");
    let mut command = tidegate(&["serve", "--rules", "envoy/rules", "--host", "127.0.0.1", "--port", "0"]);
    command.arg("--grpc-uds").arg(&socket);
    let mut process = Process::start(command);
    process.line_with("tidegate: serving");
    let upstream = Upstream::start();
    let example = Example::read("sidecar.yaml").before(&upstream).patient();
    let envoy = example.with_path("/run/tidegate/tidegate.sock", &socket).start();
    let ask = |method: &str, caller: &str| ask_from(&envoy, HERE, method, "/things", &[("x-caller", caller)], "");

    let denied = denied_after(20, || ask("POST", "shop"));
    assert!(retry_after(&denied) > 0);
    for write in ["PUT", "PATCH", "DELETE"] {
        assert_eq!(ask(write, "shop").status, 429, "{write}");
    }
    assert_eq!(ask("GET", "shop").status, 200, "reading is another limit");
    assert_eq!(ask("POST", "billing").status, 200, "and so is another caller");
    denied_after(60, || ask("POST", "nightly-import"));

    kill(&mut process);
    assert_eq!(ask("POST", "shop").status, 200, "without Tidegate everything passes");
}

/// The certificates that the comment asks for, on both sides, for these names.
fn make_certificates(directory: &Path, authority: &Authority, tidegate: &str, envoy: &str) {
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
    write("ca.crt", &authority.pem());
    for (side, name) in [("tidegate", tidegate), ("envoy", envoy)] {
        let pair = authority.issue(&[name]);
        write(&format!("{side}.crt"), &pair.certificate);
        write(&format!("{side}.key"), &pair.key);
    }
}

/// The command of the comment, for files in another directory.
fn serve_with_certificates(directory: &Path) -> Service {
    let file = |name: &str| directory.join(name).to_str().expect("temporary paths are UTF-8").to_owned();
    serve_all(&[
        "--grpc-server-use-tls",
        "--grpc-server-tls-cert",
        &file("tidegate.crt"),
        "--grpc-server-tls-key",
        &file("tidegate.key"),
        "--grpc-client-tls-cacert",
        &file("ca.crt"),
        "--grpc-client-tls-san",
        "envoy.example.com",
    ])
}

#[test]
fn mtls_answers_envoy_and_nobody_else() {
    let [directory, others, impostors] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let authority = Authority::new("an authority");
    make_certificates(directory.path(), &authority, "tidegate.example.com", "envoy.example.com");
    make_certificates(others.path(), &authority, "tidegate.example.com", "other.example.com");
    make_certificates(impostors.path(), &authority, "tidegate.example.org", "envoy.example.com");
    let mut service = serve_with_certificates(directory.path());
    let impostor = serve_with_certificates(impostors.path());
    let upstream = Upstream::start();
    let example = |service: &Service, files: &Path| {
        let example = Example::read("mtls.yaml").before(&upstream).asking(service.grpc).patient();
        example.with_path("/etc/tidegate/tls", files)
    };

    let good = example(&service, directory.path());
    Envoy::validate(&good.text()).expect("a good bootstrap");
    let envoy = good.start();
    denied_after(5, || get(&envoy, "/"));

    let other = example(&service, others.path()).start();
    assert_eq!(get(&other, "/").status, 500, "no answer, so it denies");
    service.process.line_with("none of its names (other.example.com) is in");

    let deceived = example(&impostor, directory.path()).start();
    assert_eq!(get(&deceived, "/").status, 500, "Tidegate's certificate is for another name");
}

/// A request of a client of the language model, which asks for few tokens and has used so many in the end.
fn chat(envoy: &Envoy, key: &str, used: &str) -> HttpAnswer {
    let headers = [("x-api-key", key), ("x-max-tokens", "1"), ("x-answer-tokens", used)];
    ask_from(envoy, HERE, "POST", "/v1/chat", &headers, "{}")
}

#[test]
fn llm_tokens_are_charged_when_they_have_been_used() {
    let service = serve_all(&[]);
    let upstream = Upstream::start();
    let envoy = Example::read("llm-tokens.yaml").before(&upstream).asking(service.grpc).patient().start();
    let used = || {
        let series = "ratelimit_service_rate_limit_total_hits{domain=\"llm\",key1=\"tokens_used\"}";
        service.metric(series).unwrap_or_default()
    };

    assert_eq!(chat(&envoy, "alice", "90000").status, 200);
    until_equal(PATIENCE, 90_000.0, used);
    let passed = chat(&envoy, "alice", "10000");
    assert_eq!((passed.status, passed.header("x-ratelimit-remaining")), (200, Some("10000")));
    until_equal(PATIENCE, 100_000.0, used);

    // The whole budget is used, exactly: a look still passes. What is used then is a debt.
    assert_eq!(chat(&envoy, "alice", "5000").status, 200);
    until_equal(PATIENCE, 105_000.0, used);
    for _ in 0..5 {
        let denied = chat(&envoy, "alice", "7");
        assert_eq!(denied.status, 429, "{denied:?}");
        assert!(retry_after(&denied) > 0);
    }

    // One request may take more than there is, and is charged for all of it.
    assert_eq!(chat(&envoy, "bob", "250000").status, 200);
    until_equal(PATIENCE, 355_000.0, used);
    assert_eq!(chat(&envoy, "bob", "1").status, 429);

    // A response that does not say what it used costs nothing, and neither did those that were denied.
    let silent = ask_from(&envoy, HERE, "POST", "/v1/chat", &[("x-api-key", "carol"), ("x-max-tokens", "1")], "{}");
    assert_eq!(silent.status, 200);
    assert_eq!(chat(&envoy, "carol", "7").status, 200);
    until_equal(PATIENCE, 355_007.0, used);

    assert_eq!(get(&envoy, "/v1/chat").status, 401, "who is nobody has no budget");
}

#[test]
fn llm_tokens_that_are_asked_for_cost_nothing_when_they_are_denied() {
    let service = serve_all(&[]);
    let upstream = Upstream::start();
    let envoy = Example::read("llm-tokens.yaml").before(&upstream).asking(service.grpc).patient().start();
    let ask = |key: &str, most: &str| {
        ask_from(&envoy, HERE, "POST", "/v1/chat", &[("x-api-key", key), ("x-max-tokens", most)], "{}").status
    };
    assert_eq!([ask("alice", "8000"), ask("alice", "8000")], [200, 200]);
    for _ in 0..5 {
        assert_eq!(ask("alice", "8000"), 429);
    }
    assert_eq!(ask("alice", "4000"), 200, "what was denied was not charged");

    // Whatever is no cost costs the most: nobody chooses his own limit.
    for (client, nonsense) in ["abc", "-5", "0", "0.5", "1e12", "nan", "", "5, 5"].into_iter().enumerate() {
        let key = format!("client-{client}");
        let statuses = [ask(&key, nonsense), ask(&key, nonsense), ask(&key, nonsense)];
        assert_eq!(statuses, [200, 200, 429], "'{nonsense}' costs 8000");
    }
    let without = || ask_from(&envoy, HERE, "POST", "/v1/chat", &[("x-api-key", "dave")], "{}").status;
    assert_eq!([without(), without(), without()], [200, 200, 429]);
}

#[test]
fn login_locks_out_users_and_addresses_and_tells_them() {
    let mut service = serve_all(&[]);
    let upstream = Upstream::start();
    let envoy = Example::read("login.yaml").before(&upstream).asking(service.grpc).patient().start();
    let post = |from: [u8; 4], path: &str, body: &str| {
        ask_from(&envoy, from, "POST", path, &[("content-type", "application/json")], body)
    };
    let login =
        |from: [u8; 4], user: &str| post(from, "/login", &json!({"user": user, "password": "guess"}).to_string());

    for _ in 0..5 {
        assert_eq!(login(HERE, "alice").status, 200);
    }
    let denied = login(HERE, "alice");
    let wait = retry_after(&denied);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    assert!((1..=960).contains(&wait), "{denied:?}");
    let problem: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!((&problem["status"], &problem["title"]), (&json!(429), &json!("Too many attempts")));
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(&format!(" {wait} seconds"))), "{problem}");
    assert_eq!(denied.header("x-ratelimit-remaining"), None, "attackers are not told what is left");

    // It is the name that is locked, from everywhere and however the path is written.
    assert_eq!(login(THERE, "alice").status, 429);
    for path in ["/login?next=/", "//login", "/LOGIN"] {
        assert_eq!(post(HERE, path, "{\"user\": \"alice\"}").status, 429, "{path}");
    }
    // What was denied did not count: the address has five attempts left, for others.
    for user in ["bob", "carol", "dave", "erin", "frank"] {
        assert_eq!(login(HERE, user).status, 200, "{user}");
    }
    assert_eq!(login(HERE, "grace").status, 429, "the address is locked out");
    assert_eq!(login(THERE, "grace").status, 200, "but not others");

    // Attempts without a readable name share one count, from everywhere.
    let nameless = ["", "{}", "not JSON", "{\"user\": \"\"}", "{\"user\": {\"a\": 1}}"];
    for (from, body) in nameless.into_iter().enumerate() {
        assert_eq!(post([127, 0, 5, from as u8 + 1], "/login", body).status, 200, "{body}");
    }
    for body in nameless {
        assert_eq!(post([127, 0, 5, 100], "/login", body).status, 429, "{body}");
    }

    // Nothing else is limited. Without Tidegate nobody logs in, and everything else works.
    for _ in 0..20 {
        assert_eq!([get(&envoy, "/login").status, post(HERE, "/search", "{}").status], [200, 200]);
    }
    let large = json!({"user": "zoe", "password": "x".repeat(100_000)}).to_string();
    assert_eq!([post(THERE, "/login", &large).status, post(THERE, "/upload", &large).status], [413, 200]);
    kill(&mut service.process);
    let refused = login(THERE, "zoe");
    assert_eq!((refused.status, refused.header("content-type")), (503, Some("application/problem+json")));
    assert!(refused.body.contains("Login is not available"), "{refused:?}");
    assert_eq!(get(&envoy, "/").status, 200);
}

/// The commands of the comments know every flag that they name.
#[test]
fn the_comments_start_tidegate_with_flags_that_exist() {
    let help =
        crate::support::harness::run(Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--help"])).stdout;
    for file in ["edge.yaml", "sidecar.yaml", "mtls.yaml", "llm-tokens.yaml", "login.yaml"] {
        let text = std::fs::read_to_string(crate::examples::files::path_of(file)).unwrap();
        let comment: String = text.lines().take_while(|line| line.starts_with('#')).collect::<Vec<_>>().join(" ");
        assert!(comment.contains("tidegate serve --rules envoy/rules"), "{file}");
        let command = comment.split("tidegate serve").nth(1).and_then(|rest| rest.split("envoy -c").next()).unwrap();
        for flag in command.split_whitespace().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "{file}: {flag}");
        }
    }
}
