//! Who gets in over TLS, who does not and what is said about it, and what stops the start.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustls::version::{TLS12, TLS13};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::support::certificates::{Authority, Connector, Files, Pair, SERVER, Target};
use crate::support::harness::{PATIENCE, Service, answer, ask_one, rule_file, run, tidegate};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

/// A service with TLS, and all that it takes to be let in.
struct Secured {
    service: Service,
    servers: Authority,
    clients: Authority,
    own: Pair,
    _directory: TempDir,
}

impl Secured {
    /// Clients need a certificate.
    fn mutual(flags: &[&str]) -> Secured {
        Secured::start(Files::mtls_flags, flags)
    }

    /// Clients need none.
    fn one_sided() -> Secured {
        Secured::start(Files::tls_flags, &[])
    }

    fn start(tls: fn(&Files) -> Vec<String>, flags: &[&str]) -> Secured {
        let directory = tempfile::tempdir().unwrap();
        let [servers, clients] = ["servers", "clients"].map(Authority::new);
        let own = servers.issue(&[SERVER]);
        let tls = tls(&Files::in_directory(directory.path(), &own, &clients));
        let flags: Vec<&str> = tls.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Secured { service: Service::start(RULES, &flags), servers, clients, own, _directory: directory }
    }

    fn target(&self) -> Target {
        Target::Tcp(self.service.grpc)
    }

    fn connector(&self, own: Option<&Pair>) -> Connector {
        Connector::tls(self.target(), &self.servers, own)
    }
}

#[tokio::test]
async fn clients_of_tls_1_2_and_of_1_3_are_answered() {
    let plain = Secured::one_sided();
    let mutual = Secured::mutual(&["--grpc-client-tls-san", "edge.test"]);
    let edge = mutual.clients.issue(&["edge.test"]);
    for versions in [&[&TLS12][..], &[&TLS13]] {
        let connector = Connector::tls_of(versions, plain.target(), &plain.servers, None);
        connector.call().await.unwrap_or_else(|error| panic!("{versions:?}: {error}"));
        assert_eq!(connector.seen(), Some(plain.own.der()));
        let connector = Connector::tls_of(versions, mutual.target(), &mutual.servers, Some(&edge));
        connector.call().await.unwrap_or_else(|error| panic!("mutual, {versions:?}: {error}"));
    }
}

#[tokio::test]
async fn a_client_without_a_good_certificate_is_refused_while_others_go_on() {
    let mut secured = Secured::mutual(&[]);
    let good = secured.clients.issue(&["edge.test"]);
    let mut bystander = secured.connector(Some(&good)).answered().await;
    let stranger = Authority::new("strangers").issue(&["edge.test"]);
    let expired = secured.clients.issue_expired(&["edge.test"]);
    for (own, reason) in [
        (None, "the client has no certificate"),
        (Some(&stranger), "is not from the CA of --grpc-client-tls-cacert"),
        (Some(&expired), "certificate expired"),
    ] {
        for versions in [&[&TLS12][..], &[&TLS13]] {
            let connector = Connector::tls_of(versions, secured.target(), &secured.servers, own);
            connector.call().await.expect_err(reason);
            let line = secured.service.process.line_with(reason);
            assert!(line.contains("refused a connection") && line.contains("peer=127.0.0.1:"), "{line}");
            answer(&mut bystander, ask_one("a=x")).await;
        }
    }
    secured.connector(Some(&good)).call().await.expect("a good client is still let in");
}

#[tokio::test]
async fn only_names_on_the_list_are_let_in() {
    let names = "edge.site.test,spiffe://example.org/ns/edge/sa/envoy";
    let mut secured = Secured::mutual(&["--grpc-client-tls-san", names]);
    for names in [&["EDGE.site.test"][..], &["other.test", "*.site.test"], &["spiffe://example.org/ns/edge/sa/envoy"]] {
        let own = secured.clients.issue(names);
        secured.connector(Some(&own)).call().await.unwrap_or_else(|error| panic!("{names:?}: {error}"));
    }
    for names in [&["other.test"][..], &["my.edge.site.test"], &["spiffe://example.org/ns/edge/sa/envoy2"], &[]] {
        let own = secured.clients.issue(names);
        secured.connector(Some(&own)).call().await.expect_err("a name that is not on the list");
        let names = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
        let reason = format!("none of its names ({names}) is in --grpc-client-tls-san");
        assert!(secured.service.process.line_with(&reason).contains("refused a connection"));
    }
}

#[tokio::test]
async fn a_client_refuses_a_server_of_another_name_or_of_another_authority() {
    let mut secured = Secured::one_sided();
    let error = secured.connector(None).expecting("other.test").call().await.expect_err("another name");
    assert!(error.contains("NotValidForName"), "{error}");
    assert!(secured.service.process.line_with("refused a connection").contains("the client refused our certificate"));
    let error = Connector::tls(secured.target(), &secured.clients, None).call().await.expect_err("another authority");
    assert!(error.contains("UnknownIssuer"), "{error}");
    secured.connector(None).call().await.expect("the right name and authority");
}

#[tokio::test]
async fn plain_text_on_a_port_with_tls_and_tls_on_one_without_are_refused() {
    let mut secured = Secured::one_sided();
    Connector::plain(secured.target()).call().await.expect_err("plain text");
    let line = secured.service.process.line_with("refused a connection");
    assert!(line.contains("the client does not speak TLS"), "{line}");
    let mut stream = std::net::TcpStream::connect(secured.service.grpc).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    // A TLS alert at most, and then the end.
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert!(said.len() < 16, "{said:?}");
    secured.connector(None).call().await.expect("TLS");

    let mut plain = Service::start(RULES, &[]);
    Connector::tls(Target::Tcp(plain.grpc), &secured.servers, None).call().await.expect_err("TLS");
    let line = plain.process.line_with("refused a connection");
    assert!(line.contains("the client speaks TLS, which is off here"), "{line}");
    Connector::plain(Target::Tcp(plain.grpc)).call().await.expect("plain text");
}

#[tokio::test]
async fn a_handshake_that_stalls_is_cut_off_while_others_go_on() {
    let mut secured = Secured::one_sided();
    let connected = Instant::now();
    // One in the middle of the handshake, one that says nothing at all, one that is done with TLS and stops there.
    let mut stalled = std::net::TcpStream::connect(secured.service.grpc).unwrap();
    stalled.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).unwrap();
    let silent = std::net::TcpStream::connect(secured.service.grpc).unwrap();
    let done = tokio::net::TcpStream::connect(secured.service.grpc).await.unwrap();
    let config = secured.connector(None).tls_config().expect("a client of TLS");
    let name = rustls::pki_types::ServerName::try_from(SERVER).unwrap();
    let mut done = tokio_rustls::TlsConnector::from(config).connect(name, done).await.unwrap();

    let mut others = secured.connector(None).answered().await;
    for mut stream in [stalled, silent] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = tokio::task::spawn_blocking(move || stream.read(&mut [0]));
        assert_eq!(read.await.unwrap().expect("closed, not left open"), 0);
    }
    // Closed without a word, which TLS calls an error.
    let _ = done.read(&mut [0]).await;
    let after = connected.elapsed();
    assert!(after >= Duration::from_secs(9), "after {after:?}");
    assert!(secured.service.process.line_with("refused a connection").contains("within 10s"));
    answer(&mut others, ask_one("a=x")).await;
}

#[tokio::test]
async fn a_flood_of_bad_handshakes_does_not_flood_the_log() {
    let mut secured = Secured::one_sided();
    let began = Instant::now();
    for _ in 0..300 {
        let mut stream = std::net::TcpStream::connect(secured.service.grpc).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    secured.connector(None).call().await.expect("others are answered");
    // What was left out is told with a line after a second or more.
    let deadline = Instant::now() + PATIENCE;
    let is_told = |line: &String| line.contains("refused a connection") && !line.contains("left_out=0");
    while !secured.service.process.said.iter().any(is_told) {
        assert!(Instant::now() < deadline, "what was left out is told");
        Connector::plain(secured.target()).call().await.expect_err("plain text");
        assert!(secured.service.process.ends_within(Duration::from_millis(100)).is_none());
    }
    let lines = secured.service.process.said.iter().filter(|line| line.contains("refused a connection")).count();
    // Ten at once, and then one each second.
    let most = 11 + began.elapsed().as_secs() as usize;
    assert!((10..=most).contains(&lines), "{lines} lines");
}

#[tokio::test]
async fn a_look_at_the_port_is_not_worth_a_line() {
    let mut secured = Secured::one_sided();
    for _ in 0..20 {
        drop(std::net::TcpStream::connect(secured.service.grpc).unwrap());
    }
    Connector::plain(secured.target()).call().await.expect_err("plain text");
    secured.service.process.line_with("does not speak TLS");
    let lines = secured.service.process.said.iter().filter(|line| line.contains("refused a connection")).count();
    assert_eq!(lines, 1, "{:?}", secured.service.process.said);
}

#[tokio::test]
async fn an_expired_certificate_of_our_own_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let servers = Authority::new("servers");
    let files = Files::in_directory(directory.path(), &servers.issue_expired(&[SERVER]), &servers);
    let flags = files.tls_flags();
    let service = Service::start(RULES, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let warned =
        service.process.said.iter().any(|line| line.contains("the certificate expired at 2020-01-01T00:00:00Z"));
    assert!(warned, "{:?}", service.process.said);
    let error = Connector::tls(Target::Tcp(service.grpc), &servers, None).call().await.expect_err("an expired server");
    assert!(error.contains("Expired"), "{error}");
}

/// What is said when a service with these flags does not start. Its ports are taken: had it tried to open one before
/// it looked at the settings, that is what it would say.
fn not_started(flags: &[&str]) -> String {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (_directory, rules) = rule_file(RULES);
    let mut command = tidegate(&["serve", "--rules", &rules, "--host", "127.0.0.1", "--grpc-host", "127.0.0.1"]);
    command.args(["--port", &port, "--grpc-port", &port]).args(flags);
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(1), "{flags:?}: {}", ran.stderr);
    ran.stderr
}

#[test]
fn settings_that_do_not_go_together_stop_the_start() {
    for (flags, said) in [
        (&["--grpc-server-use-tls"][..], "--grpc-server-tls-cert (GRPC_SERVER_TLS_CERT) is not set"),
        (
            &["--grpc-server-use-tls", "--grpc-server-tls-cert", "c"],
            "--grpc-server-tls-key (GRPC_SERVER_TLS_KEY) is not set",
        ),
        (&["--grpc-client-tls-cacert", "ca"], "(GRPC_CLIENT_TLS_CACERT) is set, but TLS is off"),
        (&["--grpc-client-tls-san", "edge.test"], "(GRPC_CLIENT_TLS_SAN) is set, but TLS is off"),
    ] {
        let stderr = not_started(flags);
        assert!(stderr.contains(said), "{flags:?}: {stderr}");
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = Authority::new("servers");
    let flags = Files::in_directory(directory.path(), &servers.issue(&[SERVER]), &servers).tls_flags();
    let with = |more: &[&'static str]| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        not_started(&flags)
    };
    assert!(with(&["--grpc-client-tls-san", "edge.test"]).contains("is set, but no CA is"));
    let stderr = with(&["--grpc-client-tls-cacert", "/no/such", "--grpc-client-tls-san", "*.test"]);
    assert!(stderr.contains("'*.test', which is neither a DNS name nor a URI"), "{stderr}");
    let stderr = with(&["--grpc-client-tls-cacert", "/no/such"]);
    assert!(stderr.contains("(GRPC_CLIENT_TLS_CACERT): /no/such can't be read: No such file"), "{stderr}");
}

#[test]
fn files_that_can_not_be_used_stop_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let servers = Authority::new("servers");
    let [pair, other] = [(); 2].map(|()| servers.issue(&[SERVER]));
    let files = Files::in_directory(directory.path(), &pair, &servers);
    let flags = files.mtls_flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for (name, text, said) in [
        ("tls.crt", "", "tls.crt has no certificate in it"),
        ("tls.crt", &pair.certificate[..200], "tls.crt is damaged"),
        ("tls.key", "", "tls.key has no private key in it"),
        ("tls.key", &other.key, "tls.key does not belong to the certificate in"),
        ("ca.crt", "", "ca.crt has no certificate in it"),
    ] {
        files.replace_pair(&pair);
        files.replace(&[("ca.crt", &servers.pem()), (name, text)]);
        let stderr = not_started(&flags);
        assert!(stderr.contains(said), "{name}: {stderr}");
    }
    files.replace_pair(&pair);
    files.replace(&[("ca.crt", &servers.pem())]);
    assert!(not_started(&flags).contains("can't open the gRPC port"), "good files are not what stops it");
}
