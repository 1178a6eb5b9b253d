//! gRPC on a unix socket: who may connect, what becomes of the file, and what is never touched.

use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::certificates::{Authority, Connector, Files, SERVER, Target};
use crate::support::harness::{PATIENCE, Process, answer, ask_one, rule_file, run, tidegate};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

/// A directory for rules and sockets.
struct Place {
    directory: TempDir,
    rules: String,
}

impl Place {
    fn new() -> Place {
        let (directory, rules) = rule_file(RULES);
        Place { directory, rules }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("grpc.sock")
    }

    fn command(&self, socket: &Path, http_port: u16, flags: &[&str]) -> std::process::Command {
        let mut command = tidegate(&["serve", "--rules", &self.rules, "--host", "127.0.0.1"]);
        command.env("TIDEGATE_DRAIN_DELAY", "100ms");
        command.args(["--port", &http_port.to_string(), "--grpc-uds"]).arg(socket).args(flags);
        command
    }

    /// A service on the socket, once it serves.
    fn serve(&self, flags: &[&str]) -> Process {
        let mut process = Process::start(self.command(&self.socket(), 0, flags));
        let line = process.line_with("tidegate: serving");
        assert!(line.contains(&format!(" on unix:{} (gRPC)", self.socket().display())), "{line}");
        process
    }

    /// What is said when there is no service on the path. The HTTP port is taken: had it tried to open that one before,
    /// that is what it would say.
    fn not_served(&self, socket: &Path, flags: &[&str]) -> String {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let ran = run(&mut self.command(socket, taken.local_addr().unwrap().port(), flags));
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        ran.stderr
    }

    fn connector(&self) -> Connector {
        Connector::plain(Target::Unix(self.socket()))
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

#[tokio::test]
async fn it_answers_on_the_socket_and_removes_it_at_the_end() {
    let place = Place::new();
    let mut process = place.serve(&[]);
    let mut client = place.connector().answered().await;
    answer(&mut client, ask_one("a=x")).await;
    assert_eq!(mode(&place.socket()), 0o660);
    process.signal("TERM");
    let status = process.ends_within(PATIENCE).expect("it stops");
    assert!(status.success(), "{status}: {:?}", process.said);
    let left: Vec<_> = std::fs::read_dir(place.directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [PathBuf::from(&place.rules)], "nothing but the rules is left");
}

#[test]
fn the_mode_is_the_one_that_was_asked_for_from_the_first_moment() {
    let place = Place::new();
    for wanted in [0o600, 0o666, 0o777] {
        let socket = place.socket();
        let flag = format!("{wanted:o}");
        let mut process = Process::start(place.command(&socket, 0, &["--uds-mode", &flag]));
        let started = Instant::now();
        while !socket.exists() {
            assert!(started.elapsed() < PATIENCE, "the socket appears");
        }
        // At the moment it appears, it has its mode and is served.
        assert_eq!(mode(&socket), wanted);
        UnixStream::connect(&socket).unwrap();
        process.line_with("tidegate: serving");
        process.signal("TERM");
        assert!(process.ends_within(PATIENCE).is_some());
        assert!(!socket.exists());
    }
}

#[tokio::test]
async fn what_a_killed_service_left_behind_is_replaced() {
    let place = Place::new();
    let mut killed = place.serve(&[]);
    place.connector().call().await.expect("an answer");
    killed.signal("KILL");
    assert!(killed.ends_within(PATIENCE).is_some());
    assert!(std::fs::metadata(place.socket()).unwrap().file_type().is_socket(), "the socket is still there");
    let _process = place.serve(&[]);
    place.connector().call().await.expect("an answer");
}

#[tokio::test]
async fn a_socket_that_is_served_is_not_taken_over() {
    let place = Place::new();
    let _process = place.serve(&[]);
    let stderr = place.not_served(&place.socket(), &[]);
    assert!(stderr.contains("another process serves it"), "{stderr}");
    place.connector().call().await.expect("the first one is still there");
}

#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let place = Place::new();
    std::fs::write(place.socket(), "precious").unwrap();
    let stderr = place.not_served(&place.socket(), &[]);
    assert!(stderr.contains("there is a file that is not a socket, which is left alone"), "{stderr}");
    assert_eq!(std::fs::read_to_string(place.socket()).unwrap(), "precious");
}

#[test]
fn paths_and_modes_that_can_not_be_are_refused() {
    let place = Place::new();
    let stderr = place.not_served(&place.directory.path().join("no/grpc.sock"), &[]);
    assert!(stderr.contains("/no does not exist: create it"), "{stderr}");
    let stderr = place.not_served(&place.directory.path().join("x".repeat(108)), &[]);
    assert!(stderr.contains("a socket's path has at most 107"), "{stderr}");
    for bad in ["888", "rw", "-1"] {
        let stderr = place.not_served(&place.socket(), &[&format!("--uds-mode={bad}")]);
        assert!(
            stderr.contains(&format!("--uds-mode (TIDEGATE_UDS_MODE) is '{bad}', which is not a file mode")),
            "{stderr}"
        );
    }
    assert!(place.not_served(&place.socket(), &[]).contains("can't open the HTTP port"));
    assert!(!place.socket().exists(), "a start that fails leaves no socket");
}

#[test]
fn a_successor_keeps_its_socket() {
    let place = Place::new();
    let mut first = place.serve(&[]);
    std::fs::remove_file(place.socket()).unwrap();
    let successor = UnixListener::bind(place.socket()).unwrap();
    first.signal("TERM");
    assert!(first.ends_within(PATIENCE).is_some_and(|status| status.success()), "{:?}", first.said);
    UnixStream::connect(place.socket()).expect("the successor's socket is still there");
    drop(successor);
}

#[tokio::test]
async fn calls_are_answered_until_the_socket_is_gone() {
    let place = Place::new();
    let mut process = place.serve(&["--drain-delay", "1s"]);
    let calls = tokio::spawn({
        let connector = place.connector();
        let socket = place.socket();
        async move {
            let mut count = 0;
            while socket.exists() {
                let called = connector.call().await;
                // It may have gone since we looked, which is no failure.
                assert!(called.is_ok() || !socket.exists(), "{called:?}");
                count += 1;
                // The pace of the traffic.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            count
        }
    });
    process.signal("TERM");
    assert!(calls.await.expect("no call failed") > 10);
    assert!(process.ends_within(PATIENCE).is_some_and(|status| status.success()));
}

#[tokio::test]
async fn tls_works_on_the_socket_too() {
    let place = Place::new();
    let [servers, clients] = ["servers", "clients"].map(Authority::new);
    let files = Files::in_directory(place.directory.path(), &servers.issue(&[SERVER]), &clients);
    let flags = files.mtls_flags();
    let mut process = place.serve(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let own = clients.issue(&["edge.test"]);
    let target = Target::Unix(place.socket());
    Connector::tls(target.clone(), &servers, Some(&own)).call().await.expect("a client with a certificate");
    Connector::tls(target, &servers, None).call().await.expect_err("a client without");
    let line = process.line_with("refused a connection");
    assert!(line.contains("peer=process ") && line.contains("the client has no certificate"), "{line}");
}
