//! A Cluster, with real servers: what moves, what is lost with a node, and what is not.

use std::time::{Duration, Instant};

use tidegate::regional::redis::{Identity, Lane};

use crate::region::connection::{
    Server, WITHIN, add, add_within, authority, eventually, files, identities, refused, started, until_connected,
};
use crate::support::harness::free_port;

/// Where the slots of the last node begin.
const LAST_FIRST_SLOT: u16 = 10_923;

/// Primaries without replicas, so that what a lost node had stays lost. Their buses have ports of their own: those that
/// they would take otherwise are among the ones that the system gives to connections.
async fn three_nodes() -> Vec<Server> {
    let buses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
    let flags =
        ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000"];
    let start = |bus: &String| Server::start(&[&flags[..], &["--cluster-port", bus]].concat());
    let nodes: Vec<Server> = buses.iter().map(start).collect();
    let slots = [["0", "5460"], ["5461", "10922"], [&LAST_FIRST_SLOT.to_string(), "16383"]];
    for (number, (node, [first, last])) in nodes.iter().zip(slots).enumerate() {
        assert_eq!(node.cli(&["CLUSTER", "ADDSLOTSRANGE", first, last]), "OK");
        assert_eq!(node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]), "OK");
    }
    for (node, bus) in nodes.iter().zip(&buses).skip(1) {
        assert_eq!(nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), bus]), "OK");
    }
    let is_whole = |node: &Server| {
        let info = node.cli(&["CLUSTER", "INFO"]);
        ["cluster_state:ok", "cluster_known_nodes:3", "cluster_slots_assigned:16384"].iter().all(|it| info.contains(it))
    };
    eventually("agreed", async || nodes.iter().all(is_whole)).await;
    nodes
}

/// Keys whose slots the last node has, and keys whose slots the others have.
fn keys_of_last(nodes: &[Server]) -> (Vec<String>, Vec<String>) {
    let is_its = |key: &String| {
        let slot = nodes[0].cli(&["CLUSTER", "KEYSLOT", key]);
        slot.parse::<u16>().expect("a slot") >= LAST_FIRST_SLOT
    };
    (0..50).map(|n| format!("{{k{n}}}")).partition(is_its)
}

#[tokio::test]
async fn a_cluster_is_one_redis_and_loses_only_the_slots_of_a_lost_node() {
    let mut nodes = three_nodes().await;
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    let redis = started(&["--redis-url", &urls[..2].join(","), "--redis-type", "cluster"]);
    until_connected(&redis).await;
    assert!(redis.is_cluster());
    for n in 0..50 {
        assert_eq!(add(&redis, Lane::Checks, &format!("{{k{n}}}:a"), 1).await, Ok(1));
    }
    for node in &nodes {
        node.cli(&["SCRIPT", "FLUSH"]);
    }
    for n in 0..50 {
        assert_eq!(add(&redis, Lane::Replays, &format!("{{k{n}}}:a"), 1).await, Ok(2));
    }
    let servers = identities(&redis).await;
    let is_kind = |server: &Result<Identity, _>| server.as_ref().is_ok_and(|it| it.evicting_policy().is_none());
    assert!(servers.len() == 3 && servers.iter().all(is_kind), "{servers:?}");

    // Moves a slot behind its back.
    let slot = nodes[0].cli(&["CLUSTER", "KEYSLOT", "{moved}"]);
    let id = |node: &Server| node.cli(&["CLUSTER", "MYID"]);
    let to = id(&nodes[1]);
    for node in &nodes {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to]);
    }
    assert_eq!(add(&redis, Lane::Checks, "{moved}", 1).await, Ok(1));

    let within = Duration::from_millis(500);
    let (lost, kept) = keys_of_last(&nodes);
    nodes[2].kill();
    for key in &kept {
        let is_answered = async || add_within(&redis, Lane::Checks, &format!("{key}:b"), 1, within).await.is_ok();
        eventually("the others go on", is_answered).await;
    }
    for key in &lost {
        let began = Instant::now();
        assert!(add_within(&redis, Lane::Checks, &format!("{key}:b"), 1, within).await.is_err(), "{key}");
        assert!(began.elapsed() < WITHIN);
    }
    nodes[2].restart();
    eventually("whole again", async || {
        let mut whole = true;
        for n in 0..50 {
            whole &= add_within(&redis, Lane::Checks, &format!("{{k{n}}}:c"), 1, within).await.is_ok();
        }
        whole
    })
    .await;
}

#[tokio::test]
async fn a_node_that_hangs_does_not_hold_up_the_others() {
    let nodes = three_nodes().await;
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    let redis = started(&["--redis-url", &urls.join(","), "--redis-type", "cluster"]);
    until_connected(&redis).await;
    let (lost, kept) = keys_of_last(&nodes);
    nodes[2].signal("STOP");
    // Until doubts arise and another connection is made, which can not reach the node either.
    let within = Duration::from_millis(200);
    eventually("doubts arise", async || {
        for key in &lost {
            assert!(add_within(&redis, Lane::Checks, key, 1, within).await.is_err(), "{key}");
        }
        redis.status().is_doubted
    })
    .await;
    for key in &kept {
        let is_answered = async || add_within(&redis, Lane::Checks, key, 1, within).await.is_ok();
        eventually("the others go on", is_answered).await;
    }
    assert!(redis.status().is_doubted);
    nodes[2].signal("CONT");
    eventually("whole again", async || {
        add(&redis, Lane::Checks, "{k1}", 1).await.is_ok() && !redis.status().is_doubted
    })
    .await;
}

/// It begins with the node that it is told of, and learns from where calls are sent on to.
#[tokio::test]
async fn a_user_that_may_not_ask_for_the_slots_learns_them_one_by_one() {
    let nodes = three_nodes().await;
    for node in &nodes {
        assert_eq!(node.cli(&["ACL", "SETUSER", "default", "-cluster|slots"]), "OK");
    }
    let redis = started(&["--redis-url", &nodes[0].url(), "--redis-type", "cluster"]);
    until_connected(&redis).await;
    for n in 0..50 {
        let key = format!("{{k{n}}}");
        eventually(&key, async || add(&redis, Lane::Checks, &key, 1).await.is_ok()).await;
    }
    assert_eq!(redis.maps().borrow().nodes().len(), 3);
}

#[tokio::test]
async fn the_nodes_of_a_cluster_are_verified_too() {
    let directory = tempfile::tempdir().unwrap();
    let (own, ca) = authority(directory.path(), "own");
    let (_, other_ca) = authority(directory.path(), "other");
    let [certificate, key] = files(directory.path(), "node", &own.issue(&["localhost"]));
    let port = free_port();
    let text = port.to_string();
    let args = ["--port", "0", "--tls-port", &text, "--save", "", "--bind", "127.0.0.1", "--tls-cluster", "yes"];
    let tls = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let bus = free_port().to_string();
    let cluster = ["--tls-auth-clients", "optional", "--cluster-enabled", "yes", "--cluster-port", &bus];
    let cluster = [&cluster[..], &["--requirepass", "hunter2"]].concat();
    let all = args.iter().chain(&tls).chain(&cluster).map(|&arg| arg.to_owned()).collect();
    let server = Server::with(port, all, tempfile::tempdir().unwrap());
    let admin = ["--tls", "--cacert", &ca, "-a", "hunter2", "--no-auth-warning"];
    server.cli(&[&admin[..], &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]].concat());
    let is_ok = async || server.cli(&[&admin[..], &["CLUSTER", "INFO"]].concat()).contains("cluster_state:ok");
    eventually("a cluster", is_ok).await;

    // The certificate is for localhost, and the node calls itself 127.0.0.1.
    let url = format!("rediss://:hunter2@127.0.0.1:{port}");
    let skip = "--redis-tls-skip-hostname-verification";
    let flags = ["--redis-url", &url, "--redis-type", "cluster", "--redis-tls-cacert"];
    let redis = started(&[&flags[..], &[&ca, skip]].concat());
    until_connected(&redis).await;
    assert_eq!(add(&redis, Lane::Checks, "a", 1).await, Ok(1));
    refused(&[&flags[..], &[&ca]].concat(), "io").await;
    refused(&[&flags[..], &[&other_ca, skip]].concat(), "io").await;
}
