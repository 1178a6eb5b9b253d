//! Rules from a management server: taken, refused, kept, and asked for again.

use std::time::{Duration, Instant};

use prost::Name;
use tidegate::proto::google::protobuf::Any;
use tidegate::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;

use crate::support::certificates::{Authority, Files, SERVER};
use crate::support::harness::{PATIENCE, Process, Service, ask_one, run, said, tidegate, until};
use crate::support::management_server::{ManagementServer, per_minute};

/// A service that follows the server. It serves once it has rules.
fn following(server: &ManagementServer, env: &[(&str, &str)]) -> std::process::Command {
    let mut command = tidegate(&["serve", "--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1"]);
    command.args(["--grpc-port", "0"]).env("CONFIG_TYPE", "GRPC_XDS_SOTW");
    command.env("CONFIG_GRPC_XDS_SERVER_URL", server.address.to_string());
    command.env("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms");
    command.envs(env.iter().copied());
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_taken_refused_and_replaced() {
    let mut server = ManagementServer::start();
    let nonce = server.say("v1", &[per_minute("d", "a", 5), per_minute("e", "a", 5)]);
    let service = Service::of(following(&server, &[("CONFIG_GRPC_XDS_NODE_ID", "me")]));
    let first = server.asked("the first request", |request| request.response_nonce.is_empty());
    assert_eq!(first.request.type_url, RateLimitConfig::type_url());
    assert_eq!((first.request.node.unwrap().id, first.request.version_info), ("me".into(), String::new()));
    assert_eq!(server.answer_to(&nonce), ("v1".into(), None));
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 4");

    // A bad one is refused as a whole, with the reason, and changes nothing.
    let nonce = server.say("v2", &[per_minute("d", "b", 5), per_minute("f", "", 5)]);
    let (version, why) = server.answer_to(&nonce);
    let why = why.expect("a reason");
    assert_eq!(version, "v1", "the one in force");
    assert!(why.contains("xds:f/") && why.contains("key"), "{why}");
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 3");
    assert_eq!(service.page_json("/config/status")["last_attempt"]["ok"], false);

    // So is one that can't be decoded.
    let broken = Any { type_url: RateLimitConfig::type_url(), value: vec![0xff] };
    let nonce = server.say_resources("v3", vec![broken]);
    assert!(server.answer_to(&nonce).1.is_some_and(|why| why.contains("decoded")));

    // A good one replaces everything; counts of rules that stay go on.
    let mut changed = per_minute("d", "a", 10);
    changed.descriptors.extend(per_minute("d", "c", 1).descriptors);
    let nonce = server.say("v4", &[changed]);
    assert_eq!(server.answer_to(&nonce), ("v4".into(), None));
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 7");
    assert!(service.page("/rlconfig").contains("d.c"), "{}", service.page("/rlconfig"));
    assert!(!service.page("/rlconfig").contains("e.a"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_is_followed_again() {
    let mut server = ManagementServer::start();
    server.say("v1", &[per_minute("d", "a", 5)]);
    let headers = ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-tenant:one");
    let service = Service::of(following(&server, &[headers]));
    let heard = server.asked("the first request", |request| request.response_nonce.is_empty());
    assert!(heard.headers.contains(&("x-tenant".into(), "one".into())), "{:?}", heard.headers);
    server.restart();
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 4", "the last good rules stay");
    let heard = server.asked("it asks again", |request| request.response_nonce.is_empty());
    assert_eq!(heard.request.version_info, "v1", "and says what it has");
    let nonce = server.say("v2", &[per_minute("d", "a", 2)]);
    assert_eq!(server.answer_to(&nonce), ("v2".into(), None));
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_waits_for_the_first_rules_unless_told_not_to() {
    let mut server = ManagementServer::start();
    let mut waiting = Process::start(following(&server, &[]));
    waiting.line_with("waiting for the first rules from");
    let forced = Service::of(following(&server, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]));
    let error = forced.client().await.should_rate_limit(ask_one("a=x")).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable);
    assert_eq!(forced.get("/healthcheck").status, 200);
    server.say("v1", &[per_minute("d", "a", 5)]);
    waiting.line_with("tidegate: serving 1 rule");
    let mut client = forced.client().await;
    let deadline = Instant::now() + PATIENCE;
    while client.should_rate_limit(ask_one("a=x")).await.is_err() {
        assert!(Instant::now() < deadline, "the first rules are in force");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    waiting.signal("TERM");
    assert!(waiting.ends_within(PATIENCE).is_some_and(|status| status.success()));
}

#[test]
fn one_that_waits_can_be_stopped() {
    let server = ManagementServer::start();
    let mut waiting = Process::start(following(&server, &[]));
    waiting.line_with("waiting for the first rules from");
    waiting.signal("TERM");
    assert!(waiting.ends_within(PATIENCE).is_some_and(|status| status.success()));
}

/// As Envoy Gateway starts the reference: no arguments, and this environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_takes_the_place_of_the_reference_below_envoy_gateway() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("a CA");
    let files = Files::in_directory(directory.path(), &authority.issue(&[SERVER, "localhost"]), &authority);
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (file("tls.crt"), file("tls.key"), file("ca.crt"));
    let _ = files;
    let mut server = ManagementServer::with_tls(&certificate, &key, &ca);
    let redis = crate::support::redis::RedisServer::start();
    let address = server.address.to_string().replace("127.0.0.1", "localhost");
    let (port, grpc_port, debug_port, metrics) = (
        crate::support::harness::free_port().to_string(),
        crate::support::harness::free_port().to_string(),
        crate::support::harness::free_port().to_string(),
        format!("127.0.0.1:{}", crate::support::harness::free_port()),
    );
    let mut command = tidegate(&[]);
    command.envs([
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "warn"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &address),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &redis.address().to_string()),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", &metrics),
        ("PORT", &port),
        ("GRPC_PORT", &grpc_port),
        ("DEBUG_PORT", &debug_port),
    ]);
    let service = Service::of(command);
    assert_eq!(service.get("/healthcheck").status, 200, "its liveness probe, before the first rules");
    let nonce = server.say("1", &[per_minute("d", "a", 5)]);
    assert_eq!(server.answer_to(&nonce), ("1".into(), None));
    let ran = until(PATIENCE, "it answers", || {
        let mut call = tidegate(&["call", "--addr", &format!("https://localhost:{grpc_port}"), "--ca", &ca]);
        let ran = run(call.args(["--domain", "d", "a=x"]));
        (ran.code == Some(0)).then_some(ran)
    });
    assert!(ran.stdout.contains("4 remaining"), "{ran:?}");
}
