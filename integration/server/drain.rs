//! Stopping: nobody's call fails while the stop is being noticed, and nothing holds the exit up for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::support::certificates::{Authority, Connector, Files, SERVER, Target};
use crate::support::frames::{Connection, DATA, END_HEADERS, Frame, GOAWAY, HEADERS, PING, SETTINGS};
use crate::support::harness::{Client, PATIENCE, Process, Service, answer, ask_one, rule_file, tidegate};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

/// What a stop may take beyond its delay, on a machine with other things to do.
const MARGIN: Duration = Duration::from_secs(4);

async fn watch(service: &Service) -> Streaming<HealthCheckResponse> {
    let mut health = HealthClient::new(service.channel().await);
    let mut watch = health.watch(HealthCheckRequest { service: "ratelimit".into() }).await.unwrap().into_inner();
    assert_eq!(next(&mut watch).await, Some(ServingStatus::Serving));
    watch
}

/// The next status of a watch, `None` when it has ended, in whatever way.
async fn next(watch: &mut Streaming<HealthCheckResponse>) -> Option<ServingStatus> {
    let message = timeout(PATIENCE, watch.message()).await.expect("news in time");
    message.ok().flatten().map(|message| message.status())
}

/// A call that was made.
struct Call {
    ended: Instant,
    failed: Option<tonic::Status>,
}

/// Calls again and again, until told to stop or until a call fails.
async fn calls(
    connect: impl Fn() -> Channel,
    reconnects: bool,
    started: Arc<Semaphore>,
    is_over: Arc<AtomicBool>,
) -> Vec<Call> {
    let mut made = Vec::new();
    let mut channel = connect();
    while !is_over.load(Ordering::Relaxed) && made.last().is_none_or(|call: &Call| call.failed.is_none()) {
        if reconnects {
            channel = connect();
        }
        let answer = Client::new(channel.clone()).should_rate_limit(ask_one("a=x")).await;
        made.push(Call { ended: Instant::now(), failed: answer.err() });
        if made.len() == 1 {
            started.add_permits(1);
        }
        // The pace of the traffic.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_traffic_fails_no_call_before_connections_are_asked_to_go() {
    const DELAY: Duration = Duration::from_secs(2);
    let mut service = Service::start(RULES, &["--drain-delay", "2s"]);
    let is_over = Arc::new(AtomicBool::new(false));
    let started = Arc::new(Semaphore::new(0));
    let mut clients = JoinSet::new();
    for number in 0..6 {
        let endpoint = service.endpoint();
        clients.spawn(calls(move || endpoint.connect_lazy(), number % 2 == 0, started.clone(), is_over.clone()));
    }
    let mut watch = watch(&service).await;
    let _all = timeout(PATIENCE, started.acquire_many(6)).await.expect("everybody is under way");

    let asked = Instant::now();
    service.process.signal("TERM");
    assert_eq!(next(&mut watch).await, Some(ServingStatus::NotServing));
    assert!(asked.elapsed() < DELAY / 2, "health says so at once, not after {:?}", asked.elapsed());
    for path in ["/readyz", "/healthcheck"] {
        let probe = block_in_place(|| service.get(path));
        assert_eq!((probe.status, probe.body.as_str()), (500, ""), "{path}");
    }
    assert_eq!(block_in_place(|| service.get("/livez")).status, 200, "stopping is no reason to be killed");
    let mut health = HealthClient::new(service.channel().await);
    for name in ["", "ratelimit"] {
        let said = health.check(HealthCheckRequest { service: name.into() }).await.unwrap().into_inner();
        assert_eq!(said.status(), ServingStatus::NotServing, "{name:?}");
    }
    assert_eq!(answer(&mut service.client().await, ask_one("a=new")).await.overall_code, 1, "new clients are answered");
    let json = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}"#;
    assert_eq!(block_in_place(|| service.post("/json", json)).status, 200);
    assert!(asked.elapsed() < DELAY, "all of this was within the delay, not after {:?}", asked.elapsed());

    assert_eq!(next(&mut watch).await, None, "the watch ends");
    let status = block_in_place(|| service.process.ends_within(MARGIN + DELAY)).expect("the service ends");
    let took = asked.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!((DELAY..DELAY + MARGIN).contains(&took), "an open watch does not hold the exit: {took:?}");
    is_over.store(true, Ordering::Relaxed);

    for made in clients.join_all().await {
        assert_none_failed(&made, asked, DELAY);
    }
}

/// Every call before connections are asked to go must have been answered, and there must have been some.
fn assert_none_failed(made: &[Call], asked: Instant, delay: Duration) {
    let during = made.iter().filter(|call| call.ended > asked && call.failed.is_none()).count();
    assert!(during >= 10, "a client had {during} answers while the service was stopping");
    for call in made {
        if let Some(error) = &call.failed {
            let after = call.ended.saturating_duration_since(asked);
            assert!(after >= delay, "a client failed {after:?} after SIGTERM: {error:?}");
        }
    }
}

/// Stops a service under traffic, of clients that stay connected and of clients that connect for each call.
async fn assert_stops_for(connector: Connector, mut process: Process) {
    const DELAY: Duration = Duration::from_secs(1);
    let is_over = Arc::new(AtomicBool::new(false));
    let started = Arc::new(Semaphore::new(0));
    let mut clients = JoinSet::new();
    for number in 0..4 {
        let connector = connector.clone();
        clients.spawn(calls(move || connector.channel(), number % 2 == 0, started.clone(), is_over.clone()));
    }
    let _all = timeout(PATIENCE, started.acquire_many(4)).await.expect("everybody is under way");
    let asked = Instant::now();
    process.signal("TERM");
    let status = block_in_place(|| process.ends_within(MARGIN + DELAY)).expect("the service ends");
    assert_eq!(status.code(), Some(0), "{:?}", process.said);
    assert!(asked.elapsed() >= DELAY, "the stop was announced for {:?} only", asked.elapsed());
    is_over.store(true, Ordering::Relaxed);
    for made in clients.join_all().await {
        assert_none_failed(&made, asked, DELAY);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_fails_no_call_over_tls_and_on_a_unix_socket_either() {
    let (directory, rules) = rule_file(RULES);
    let authority = Authority::new("servers");
    let files = Files::in_directory(directory.path(), &authority.issue(&[SERVER]), &authority);
    let own = authority.issue(&["edge.test"]);
    let socket = directory.path().join("grpc.sock");
    let start = |flags: &[String]| {
        let mut command = tidegate(&["serve", "--rules", &rules, "--host", "127.0.0.1", "--port", "0"]);
        command.args(["--grpc-host", "127.0.0.1", "--grpc-port", "0", "--drain-delay", "1s"]).args(flags);
        command
    };
    let service = Service::of(start(&files.mtls_flags()));
    assert_stops_for(Connector::tls(Target::Tcp(service.grpc), &authority, Some(&own)), service.process).await;

    let on_socket = ["--grpc-uds".to_owned(), socket.display().to_string()];
    let mut process = Process::start(start(&on_socket));
    process.line_with("tidegate: serving");
    assert_stops_for(Connector::plain(Target::Unix(socket.clone())), process).await;

    let mut process = Process::start(start(&[&on_socket[..], &files.mtls_flags()].concat()));
    process.line_with("tidegate: serving");
    assert_stops_for(Connector::tls(Target::Unix(socket), &authority, Some(&own)), process).await;
}

#[test]
fn a_call_that_is_open_when_connections_are_asked_to_go_is_answered() {
    let mut service = Service::start(RULES, &["--drain-delay", "0s"]);
    let mut connection = Connection::open(service.grpc);
    connection.read_to(SETTINGS).expect("a greeting");
    assert!(connection.send(&Frame::call(END_HEADERS, 1).bytes()));
    // What comes after it on the connection has been read, so the call has been, too.
    assert!(connection.send(&Frame::ping().bytes()));
    connection.read_to(PING).expect("a pong");
    service.process.signal("TERM");
    connection.read_to(GOAWAY).expect("GOAWAY");
    assert!(connection.send(&Frame::message(1, &ask_one("a=x").encode_to_vec()).bytes()));
    assert_eq!(connection.read_to(HEADERS).expect("an answer").stream, 1);
    let answer = connection.read_to(DATA).expect("a message");
    assert_eq!(answer.payload[5..7], [8, 1], "the overall code is OK");
    let status = service.process.ends_within(MARGIN).expect("then the service ends");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_call_that_never_ends_holds_the_exit_no_longer_than_the_drain_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let mut service = Service::start(RULES, &["--drain-delay", "0s", "--drain-timeout", "1s"]);
    let mut connection = Connection::open(service.grpc);
    connection.read_to(SETTINGS).expect("a greeting");
    assert!(connection.send(&Frame::call(END_HEADERS, 1).bytes()));
    assert!(connection.send(&Frame::ping().bytes()));
    connection.read_to(PING).expect("a pong");
    let asked = Instant::now();
    service.process.signal("TERM");
    connection.read_to(GOAWAY).expect("GOAWAY");
    let status = service.process.ends_within(TIMEOUT + MARGIN).expect("the service ends");
    assert_eq!(status.code(), Some(0));
    assert!(asked.elapsed() >= TIMEOUT, "it was waited for, not only {:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_twice_ends_at_once() {
    for first in ["INT", "TERM"] {
        let mut service = Service::start(RULES, &["--drain-delay", "10m"]);
        let mut watch = watch(&service).await;
        service.process.signal(first);
        assert_eq!(next(&mut watch).await, Some(ServingStatus::NotServing));
        service.process.signal("INT");
        let status = block_in_place(|| service.process.ends_within(MARGIN)).expect("the service ends");
        assert_eq!(status.code(), Some(0), "SIG{first}, then SIGINT");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_delay_it_stops_at_once() {
    for (flags, env) in [(vec!["--drain-delay", "0s"], vec![]), (vec![], vec![("TIDEGATE_DRAIN_DELAY", "0s")])] {
        let mut service = Service::start_with(RULES, &flags, &env);
        let _idle = service.client().await;
        let _watch = watch(&service).await;
        let asked = Instant::now();
        service.process.signal("TERM");
        let status = block_in_place(|| service.process.ends_within(MARGIN)).expect("the service ends");
        assert_eq!(status.code(), Some(0));
        assert!(asked.elapsed() < Duration::from_millis(1500), "not the two seconds of the default");
    }
}

#[test]
fn asking_twice_does_not_wait_for_open_calls_either() {
    let mut service = Service::start(RULES, &["--drain-delay", "0s", "--drain-timeout", "10m"]);
    let mut connection = Connection::open(service.grpc);
    connection.read_to(SETTINGS).expect("a greeting");
    assert!(connection.send(&Frame::call(END_HEADERS, 1).bytes()));
    assert!(connection.send(&Frame::ping().bytes()));
    connection.read_to(PING).expect("a pong");
    service.process.signal("INT");
    connection.read_to(GOAWAY).expect("GOAWAY");
    service.process.signal("INT");
    let status = service.process.ends_within(MARGIN).expect("the service ends");
    assert_eq!(status.code(), Some(0));
}
