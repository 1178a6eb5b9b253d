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
use crate::support::promise::{Promise, print};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

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

/// Calls again and again, until told to stop or until a call fails. Each answer is a permit.
async fn calls(
    connect: impl Fn() -> Channel,
    reconnects: bool,
    answered: Arc<Semaphore>,
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
        answered.add_permits(1);
        // The pace of the traffic.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    made
}

/// Clients under way, every other one with a connection for each call.
struct Traffic {
    clients: JoinSet<Vec<Call>>,
    answered: Vec<Arc<Semaphore>>,
    is_over: Arc<AtomicBool>,
}

impl Traffic {
    async fn start<C: Fn() -> Channel + Send + Sync + 'static>(count: usize, connect: impl Fn() -> C) -> Traffic {
        let mut traffic = Traffic { clients: JoinSet::new(), answered: Vec::new(), is_over: Arc::default() };
        for number in 0..count {
            let answered = Arc::new(Semaphore::new(0));
            traffic.answered.push(answered.clone());
            traffic.clients.spawn(calls(connect(), number % 2 == 0, answered, traffic.is_over.clone()));
        }
        traffic.goes_on(1).await;
        traffic
    }

    /// Waits until every client has been answered so many times more.
    async fn goes_on(&self, times: u32) {
        for answered in &self.answered {
            answered.forget_permits(usize::MAX);
            let more = timeout(PATIENCE, answered.acquire_many(times)).await.expect("everybody is answered");
            more.expect("nobody closes it").forget();
        }
    }

    /// Ends it: no call had failed by then.
    async fn assert_none_failed_before(self, then: Instant) {
        self.is_over.store(true, Ordering::Relaxed);
        for made in self.clients.join_all().await {
            for call in made {
                let Some(error) = call.failed else { continue };
                assert!(call.ended >= then, "a client failed {:?} too early: {error:?}", then - call.ended);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_traffic_fails_no_call_while_it_is_announced() {
    // For as long as all of this takes; then it is asked again.
    let mut service = Service::start(RULES, &["--drain-delay", "10m"]);
    let endpoint = service.endpoint();
    let traffic = Traffic::start(6, || {
        let endpoint = endpoint.clone();
        move || endpoint.connect_lazy()
    })
    .await;
    let mut watch = watch(&service).await;
    service.process.signal("TERM");
    assert_eq!(next(&mut watch).await, Some(ServingStatus::NotServing));
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
    traffic.goes_on(10).await;

    let asked_again = Instant::now();
    service.process.signal("INT");
    assert_eq!(next(&mut watch).await, None, "the watch ends");
    let status = block_in_place(|| service.process.ends_within(PATIENCE)).expect("the service ends");
    assert_eq!(status.code(), Some(0));
    traffic.assert_none_failed_before(asked_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_watch_does_not_hold_the_exit() {
    const DELAY: Duration = Duration::from_secs(1);
    let mut service = Service::start(RULES, &["--drain-delay", "1s", "--drain-timeout", "10m"]);
    let mut watch = watch(&service).await;
    let asked = Instant::now();
    service.process.signal("TERM");
    assert_eq!(next(&mut watch).await, Some(ServingStatus::NotServing));
    assert_eq!(next(&mut watch).await, None, "the watch ends");
    assert!(asked.elapsed() >= DELAY, "the stop was announced for {:?} only", asked.elapsed());
    let status = block_in_place(|| service.process.ends_within(PATIENCE)).expect("the service ends");
    assert_eq!(status.code(), Some(0));
}

/// Stops a service under traffic, of clients that stay connected and of clients that connect for each call.
async fn assert_stops_for(connector: Connector, mut process: Process) {
    const DELAY: Duration = Duration::from_secs(1);
    let traffic = Traffic::start(4, || {
        let connector = connector.clone();
        move || connector.channel()
    })
    .await;
    let asked = Instant::now();
    process.signal("TERM");
    let status = block_in_place(|| process.ends_within(PATIENCE)).expect("the service ends");
    assert_eq!(status.code(), Some(0), "{:?}", process.said);
    assert!(asked.elapsed() >= DELAY, "the stop was announced for {:?} only", asked.elapsed());
    traffic.assert_none_failed_before(asked + DELAY).await;
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
    let mut service = Service::start(RULES, &["--drain-delay", "0s", "--drain-timeout", "10m"]);
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
    let status = service.process.ends_within(PATIENCE).expect("then the service ends");
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
    let status = service.process.ends_within(PATIENCE).expect("the service ends");
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
        let status = block_in_place(|| service.process.ends_within(PATIENCE)).expect("the service ends");
        assert_eq!(status.code(), Some(0), "SIG{first}, then SIGINT");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_delay_it_stops_at_once() {
    print(&at_once().await);
}

/// The delay is none by the flag, whatever the environment says, and by the environment alone.
pub async fn at_once() -> Vec<Promise> {
    let mut promises = Vec::new();
    for (flags, delay) in [(vec!["--drain-delay", "0s"], "10m"), (vec![], "0s")] {
        let mut service = Service::start_with(RULES, &flags, &[("TIDEGATE_DRAIN_DELAY", delay)]);
        let _idle = service.client().await;
        let _watch = watch(&service).await;
        let asked = Instant::now();
        service.process.signal("TERM");
        let status = block_in_place(|| service.process.ends_within(PATIENCE)).expect("the service ends");
        assert_eq!(status.code(), Some(0));
        let soon = Duration::from_millis(1500);
        promises.push(Promise::within("a stop without a delay, where two seconds are usual", soon, asked.elapsed()));
    }
    promises
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
    let status = service.process.ends_within(PATIENCE).expect("the service ends");
    assert_eq!(status.code(), Some(0));
}
