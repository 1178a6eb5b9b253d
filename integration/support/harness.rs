//! What the tests stand on: a running service, clients for its ports, and short words for what they ask and hear.
//!
//! Every wait is bounded, and every process is killed when the value that stands for it is dropped.

use std::fs::{DirEntry, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use tempfile::TempDir;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tidegate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate::proto::google::protobuf::UInt64Value;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};

pub type Client = RateLimitServiceClient<Channel>;

/// How long anything may take that normally takes milliseconds. Generous, because all tests share two cores with whatever else
/// runs on the machine: a test may fail only for something that never comes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The binary, in the package's directory and with an empty environment. Many processes run at once, so the admin port is any
/// free one.
pub fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env_clear().current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command.env("DEBUG_PORT", "0");
    command
}

/// A process, and what it says on standard error.
pub struct Process {
    child: Killed,
    lines: Receiver<String>,
    pub said: Vec<String>,
}

impl Process {
    pub fn start(mut command: Command) -> Process {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the process starts");
        let stderr = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Process { child: Killed(child), lines, said: Vec::new() }
    }

    /// Waits for a line on standard error.
    pub fn line_with(&mut self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(error) => panic!("no line with '{part}' ({error}), but {:?}", self.said),
            }
        }
    }

    /// Waits for the end; `None` if it does not come. Standard error closes with the process, so there is nothing to poll.
    pub fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(self.child.0.wait().expect("the process can be waited for"));
                }
                Err(RecvTimeoutError::Timeout) => return None,
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends a signal. After STOP, waits until the process has stopped: on a busy machine its threads run on for a while after
    /// the signal was sent.
    pub fn signal(&self, name: &str) {
        let pid = self.child.0.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill runs");
        assert!(status.success(), "kill -{name} {pid}");
        if name == "STOP" {
            until(PATIENCE, "all of its threads stand still", || self.stands_still().then_some(()));
        }
    }

    fn stands_still(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.0.id())).expect("the process runs");
        // A thread that ends meanwhile does not run either.
        let state = |thread: DirEntry| std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        threads
            .flatten()
            .all(|thread| state(thread).lines().all(|line| !line.starts_with("State:") || line.contains("stopped")))
    }

    /// A figure of `/proc/PID/status`, in bytes: `VmRSS` is what is resident, `VmHWM` the most that ever was.
    pub fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.0.id())).expect("the process runs");
        let line = status.lines().find(|line| line.starts_with(field)).expect("the field is there");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
        kib * 1024
    }
}

/// A running service on free ports.
pub struct Service {
    pub process: Process,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub admin: SocketAddr,
    directory: Option<TempDir>,
}

impl Service {
    /// Serves rules, by `tidegate serve` and the flags.
    pub fn start(rules: &str, flags: &[&str]) -> Service {
        Service::start_with(rules, flags, &[])
    }

    pub fn start_with(rules: &str, flags: &[&str], env: &[(&str, &str)]) -> Service {
        let (directory, file) = rule_file(rules);
        let mut command = tidegate(&["serve", "--rules", &file]);
        command.args(["--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1", "--grpc-port", "0"]);
        command.args(flags).envs(env.iter().copied());
        Service { directory: Some(directory), ..Service::of(command) }
    }

    /// Writes other rules into the file that the service was started with.
    pub fn write_rules(&self, rules: &str) {
        let directory = self.directory.as_ref().expect("the rules are its own");
        std::fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    }

    /// Serves a rule file on a given gRPC port, so that a service that has ended can start again where it was. Announces a stop
    /// for so long that a busy Envoy notices.
    pub fn on_port(rule_file: &str, grpc_port: u16) -> Service {
        let mut command = tidegate(&["serve", "--rules", rule_file, "--host", "127.0.0.1", "--port", "0"]);
        command.args(["--grpc-host", "127.0.0.1", "--grpc-port", &grpc_port.to_string(), "--drain-delay", "4s"]);
        Service::of(command)
    }

    /// Runs a command, and waits until it serves.
    pub fn of(command: Command) -> Service {
        let mut process = Process::start(command);
        let line = process.line_with("tidegate: serving");
        let address = |port: &str| {
            let before = line.split(&format!(" ({port})")).next().unwrap_or_default();
            before.rsplit(' ').next().and_then(|address| address.parse().ok()).expect("the line names the ports")
        };
        let (grpc, http, admin) = (address("gRPC"), address("HTTP"), address("admin"));
        Service::running(process, grpc, http, admin)
    }

    /// A service that was started elsewhere.
    pub fn running(process: Process, grpc: SocketAddr, http: SocketAddr, admin: SocketAddr) -> Service {
        Service { process, grpc, http, admin, directory: None }
    }

    pub async fn channel(&self) -> Channel {
        self.endpoint().connect().await.expect("the gRPC port answers")
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap().timeout(PATIENCE).connect_timeout(PATIENCE)
    }

    pub async fn client(&self) -> Client {
        Client::new(self.channel().await)
    }

    pub fn get(&self, path: &str) -> HttpAnswer {
        http(self.http, "GET", path, "")
    }

    pub fn post(&self, path: &str, body: &str) -> HttpAnswer {
        http(self.http, "POST", path, body)
    }

    /// A page of the admin port.
    pub fn page(&self, path: &str) -> String {
        let answer = http(self.admin, "GET", path, "");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }

    pub fn page_json(&self, path: &str) -> serde_json::Value {
        http(self.admin, "GET", path, "").json()
    }

    /// How many hits a descriptor has in its window. The descriptor is written as for `explain`.
    pub fn counted(&self, domain: &str, descriptor: &str) -> u64 {
        let page = self.page_json(&format!("/explain?domain={domain}&descriptor={descriptor}&output=json"));
        page[0]["now"][0]["counted"].as_u64().unwrap_or_else(|| panic!("{descriptor} is not counted: {page}"))
    }

    /// The value of a metric, by its name with its labels.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let page = self.page("/metrics");
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.parse().expect("a number"))
    }
}

/// Writes rules to a file that lives as long as its directory.
pub fn rule_file(rules: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yaml");
    std::fs::write(&file, rules).unwrap();
    let name = file.to_str().expect("temporary paths are UTF-8").to_owned();
    (directory, name)
}

/// A free port that the system never gives to a process that asks for any port: it gives those from 32768 on. The port belongs
/// to this process until it ends, even while nobody listens there: other runs of the tests on the machine see the lock.
pub fn free_port() -> u16 {
    static CLAIMED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let claims = std::env::temp_dir().join("tidegate-test-ports");
    std::fs::create_dir_all(&claims).expect("a directory for claims");
    let mut claimed = CLAIMED.lock().unwrap();
    for port in 12_000..32_000 {
        let claim = File::options().create(true).append(true).open(claims.join(port.to_string())).expect("a claim");
        if claim.try_lock().is_err() {
            continue;
        }
        let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok() && TcpListener::bind(("0.0.0.0", port)).is_ok();
        // A port that somebody else uses stays claimed, so that it is not tried again.
        claimed.push(claim);
        if is_free {
            return port;
        }
    }
    panic!("no port from 12000 to 31999 is free");
}

/// Looks again and again until there is something to see.
pub fn until<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a figure is as it should be. Panics with the last one if it never is.
pub fn until_equal<T: PartialEq + std::fmt::Debug>(limit: Duration, expected: T, mut figure: impl FnMut() -> T) {
    let deadline = Instant::now() + limit;
    loop {
        let seen = figure();
        if seen == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{seen:?} instead of {expected:?} after {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How a command ended, and what it printed.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end. If it does not end, for instance because it serves, it is killed and the test fails.
pub fn run(command: &mut Command) -> Ran {
    Running::start(command).end()
}

/// A command that runs.
pub struct Running {
    child: Killed,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
    name: String,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command runs");
        let mut child = Killed(child);
        let stdout = read_all(child.0.stdout.take().expect("standard output is piped"));
        let stderr = read_all(child.0.stderr.take().expect("standard error is piped"));
        Running { child, stdout, stderr, name: format!("{command:?}") }
    }

    /// Sends the signal that Ctrl-C sends.
    pub fn interrupt(&self) {
        let pid = self.child.0.id().to_string();
        let status = Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
        assert!(status.success(), "kill -INT {pid}");
    }

    pub fn end(mut self) -> Ran {
        let deadline = Instant::now() + PATIENCE;
        let text = |bytes: &Receiver<Vec<u8>>| {
            let left = deadline.saturating_duration_since(Instant::now());
            let bytes = bytes.recv_timeout(left).unwrap_or_else(|_| panic!("{} does not end", self.name));
            String::from_utf8(bytes).expect("output is UTF-8")
        };
        let (stdout, stderr) = (text(&self.stdout), text(&self.stderr));
        Ran { code: self.child.0.wait().expect("the command can be waited for").code(), stdout, stderr }
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if from.read_to_end(&mut bytes).is_ok() {
            let _ = sender.send(bytes);
        }
    });
    receiver
}

/// A child that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An HTTP/1 answer.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl HttpAnswer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// One request on a connection of its own.
pub fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> HttpAnswer {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the HTTP port answers");
    http_over(stream, method, path, &[], body)
}

pub fn http_over(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> HttpAnswer {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    send_http(&mut stream, method, path, headers, body.as_ref());
    receive_http(stream)
}

/// Sends a request that is the last one on its connection.
pub fn send_http(stream: &mut impl Write, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    // A server may refuse a long body before it has read it all.
    let _ = stream.write_all(body);
}

/// Reads an answer to the end of its connection.
pub fn receive_http(mut stream: impl Read) -> HttpAnswer {
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("answers are text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {ended:?} {answer:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let pair = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut answer = HttpAnswer {
        status: status.unwrap_or_else(|| panic!("no status: {answer:?}")),
        headers: lines.filter_map(pair).collect(),
        body: body.to_owned(),
    };
    if answer.header("transfer-encoding") == Some("chunked") {
        answer.body = unchunked(&answer.body).unwrap_or_else(|| panic!("not in chunks: {answer:?}"));
    }
    answer
}

/// Joins a body that came in pieces, each after its length.
fn unchunked(mut body: &str) -> Option<String> {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(whole);
        }
        whole += rest.get(..length)?;
        body = rest.get(length..)?.strip_prefix("\r\n")?;
    }
}

/// The path of ShouldRateLimit.
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Calls a method with bytes that nobody encodes or decodes.
pub async fn send_bytes(channel: &Channel, method: &'static str, message: Bytes) -> Result<Bytes, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.expect("the connection is open");
    let path = http::uri::PathAndQuery::from_static(method);
    grpc.unary(tonic::Request::new(message), path, AsIs).await.map(tonic::Response::into_inner)
}

/// A codec that leaves messages as they are.
struct AsIs;

impl Codec for AsIs {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = AsIs;
    type Decoder = AsIs;

    fn encoder(&mut self) -> AsIs {
        AsIs
    }

    fn decoder(&mut self) -> AsIs {
        AsIs
    }
}

impl Encoder for AsIs {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for AsIs {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// A descriptor of `key=value,key2=value2`.
pub fn descriptor(text: &str) -> RateLimitDescriptor {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let entries = pairs.map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

/// A descriptor with hits of its own.
pub fn descriptor_for(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(text) }
}

/// A descriptor that gives hits back.
pub fn refund(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor_for(text, hits) }
}

/// A descriptor with a limit of its own.
pub fn overridden(text: &str, requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit }), ..descriptor(text) }
}

/// A request of the domain `d`, which most rules of tests are for.
pub fn ask(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "d".into(),
        descriptors: descriptors.into_iter().collect(),
        ..RateLimitRequest::default()
    }
}

/// A request of one plain descriptor.
pub fn ask_one(text: &str) -> RateLimitRequest {
    ask([descriptor(text)])
}

pub async fn answer(client: &mut Client, request: RateLimitRequest) -> RateLimitResponse {
    client.should_rate_limit(request).await.expect("an answer").into_inner()
}

/// An answer in short: `OVER: OK 9, OVER 0`.
pub async fn said(client: &mut Client, request: RateLimitRequest) -> String {
    in_short(&answer(client, request).await)
}

pub fn in_short(response: &RateLimitResponse) -> String {
    let word = |code: i32| match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER",
        _ => "UNKNOWN",
    };
    let statuses: Vec<String> =
        response.statuses.iter().map(|status| format!("{} {}", word(status.code), status.limit_remaining)).collect();
    format!("{}: {}", word(response.overall_code), statuses.join(", "))
}

/// The headers of an answer as `name: value`.
pub fn headers(response: &RateLimitResponse) -> Vec<String> {
    response.response_headers_to_add.iter().map(|header| format!("{}: {}", header.key, header.value)).collect()
}
