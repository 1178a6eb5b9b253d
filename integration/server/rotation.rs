//! Certificates that change while the service runs: no call fails, and what is new is in force for whoever comes next.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::certificates::{Authority, Connector, Files, Pair, SERVER, Target};
use crate::support::harness::{PATIENCE, Service, answer, ask_one};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

fn start(flags: &[String]) -> Service {
    Service::start(RULES, &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Waits until a new connection shows a certificate. Every call on the way has to succeed.
async fn shows(connector: &Connector, pair: &Pair) {
    let changed = Instant::now();
    loop {
        connector.call().await.expect("a certificate of the authority, old or new");
        if connector.seen() == Some(pair.der()) {
            return;
        }
        assert!(changed.elapsed() < PATIENCE, "the new certificate is shown");
        // Only looking tells when it is there.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Clients that call all the while: half of them on one connection, half on a new one for each call.
struct Traffic {
    is_over: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    clients: JoinSet<()>,
}

impl Traffic {
    async fn of(connector: &Connector) -> Traffic {
        let mut traffic = Traffic { is_over: Arc::default(), calls: Arc::default(), clients: JoinSet::new() };
        for _ in 0..2 {
            let (is_over, calls) = (traffic.is_over.clone(), traffic.calls.clone());
            let fresh = connector.clone();
            traffic.clients.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    fresh.call().await.expect("no call fails on a new connection");
                    calls.fetch_add(1, Ordering::Relaxed);
                    // The pace of the traffic.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            let (is_over, calls) = (traffic.is_over.clone(), traffic.calls.clone());
            let kept = connector.anew();
            let mut client = kept.answered().await;
            traffic.clients.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    answer(&mut client, ask_one("a=x")).await;
                    calls.fetch_add(1, Ordering::Relaxed);
                    // The pace of the traffic.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                assert_eq!(kept.connects.load(Ordering::Relaxed), 1, "an open connection goes on");
            });
        }
        traffic
    }

    async fn finish(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.expect("no call failed");
        }
        let calls = self.calls.load(Ordering::Relaxed);
        assert!(calls > 20, "only {calls} calls were made");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_renamed_into_place_under_load_fail_no_call() {
    let directory = tempfile::tempdir().unwrap();
    let [servers, clients] = ["servers", "clients"].map(Authority::new);
    let files = Files::in_directory(directory.path(), &servers.issue(&[SERVER]), &clients);
    let service = start(&files.mtls_flags());
    let own = clients.issue(&["edge.test"]);
    let connector = Connector::tls(Target::Tcp(service.grpc), &servers, Some(&own));
    let traffic = Traffic::of(&connector).await;
    for _ in 0..4 {
        let new = servers.issue(&[SERVER]);
        files.replace_pair(&new);
        shows(&connector.anew(), &new).await;
    }
    traffic.finish().await;
}

/// A mounted secret of Kubernetes: files are links into `..data`, which is a link to the version in force.
struct Secret(TempDir);

impl Secret {
    fn of(pair: &Pair, clients: &Authority) -> Secret {
        let secret = Secret(tempfile::tempdir().unwrap());
        secret.swap("..2026_01_01", pair, clients);
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            symlink(Path::new("..data").join(name), secret.0.path().join(name)).unwrap();
        }
        secret
    }

    fn swap(&self, version: &str, pair: &Pair, clients: &Authority) {
        let root = self.0.path();
        std::fs::create_dir(root.join(version)).unwrap();
        Files::in_directory(&root.join(version), pair, clients);
        let before = std::fs::read_link(root.join("..data"));
        symlink(version, root.join("..data_tmp")).unwrap();
        std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        if let Ok(before) = before {
            std::fs::remove_dir_all(root.join(before)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_kubernetes_swaps_under_load_fails_no_call() {
    let [servers, clients] = ["servers", "clients"].map(Authority::new);
    let secret = Secret::of(&servers.issue(&[SERVER]), &clients);
    let service = start(&Files { directory: secret.0.path().to_owned() }.mtls_flags());
    let own = clients.issue(&["edge.test"]);
    let connector = Connector::tls(Target::Tcp(service.grpc), &servers, Some(&own));
    let traffic = Traffic::of(&connector).await;
    for version in ["..2026_02_01", "..2026_03_01", "..2026_04_01"] {
        let new = servers.issue(&[SERVER]);
        secret.swap(version, &new, &clients);
        shows(&connector.anew(), &new).await;
    }
    traffic.finish().await;
}

#[tokio::test]
async fn what_can_not_be_used_changes_nothing_and_sighup_tries_again() {
    let directory = tempfile::tempdir().unwrap();
    let servers = Authority::new("servers");
    let [first, second] = [(); 2].map(|()| servers.issue(&[SERVER]));
    let files = Files::in_directory(directory.path(), &first, &servers);
    let mut service = start(&files.tls_flags());
    let connector = Connector::tls(Target::Tcp(service.grpc), &servers, None);
    for (name, text, reason) in [
        ("tls.crt", second.certificate.as_str(), "does not belong to the certificate"),
        ("tls.crt", "half a fi", "tls.crt has no certificate in it"),
        ("tls.key", "", "tls.key has no private key in it"),
    ] {
        files.replace_pair(&first);
        files.replace(&[(name, text)]);
        let line = service.process.line_with(reason);
        assert!(line.contains("the certificates were not reloaded, those from before stay in force"), "{line}");
        connector.call().await.expect("the old certificate is good enough");
        assert_eq!(connector.seen(), Some(first.der()));
    }
    std::fs::remove_file(directory.path().join("tls.crt")).unwrap();
    service.process.line_with("tls.crt can't be read: No such file");
    connector.call().await.expect("the old certificate is good enough");

    service.process.signal("HUP");
    service.process.line_with("tls.crt can't be read: No such file");
    files.replace_pair(&second);
    shows(&connector, &second).await;
    assert!(service.metric("tidegate_certificate_reload_errors_total").expect("counted") >= 5.0);
    assert!(service.metric("tidegate_certificate_reloads_total").expect("counted") >= 1.0);
}

#[tokio::test]
async fn another_authority_of_clients_is_in_force_for_whoever_comes_next() {
    let directory = tempfile::tempdir().unwrap();
    let [servers, before, after] = ["servers", "before", "after"].map(Authority::new);
    let files = Files::in_directory(directory.path(), &servers.issue(&[SERVER]), &before);
    let service = start(&files.mtls_flags());
    let [old, new] = [&before, &after]
        .map(|clients| Connector::tls(Target::Tcp(service.grpc), &servers, Some(&clients.issue(&["edge.test"]))));
    new.call().await.expect_err("not yet");
    let mut open = old.answered().await;

    // Both for a while, as a careful operator does it.
    files.replace(&[("ca.crt", &format!("{}{}", before.pem(), after.pem()))]);
    let changed = Instant::now();
    while new.call().await.is_err() {
        assert!(changed.elapsed() < PATIENCE, "the new authority is in force");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    old.call().await.expect("the old one, too");

    files.replace(&[("ca.crt", &after.pem())]);
    let changed = Instant::now();
    while old.call().await.is_ok() {
        assert!(changed.elapsed() < PATIENCE, "the old authority is not in force any more");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    new.call().await.expect("the new authority");
    answer(&mut open, ask_one("a=x")).await;
}
