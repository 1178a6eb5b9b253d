//! Every scope in every outage under every `on_outage`: how much is admitted, and what is said of it.
//!
//! All cells are asked of the same two processes, each on a key of its own that nobody has asked for before.

use std::fmt;

use crate::support::fleet::{Fleet, PATIENT, until_settled};
use crate::support::harness::{Client, PATIENCE, ask_one, until, until_equal};
use crate::support::mariadb::MariaDbServer;
use crate::support::redis::RedisServer;
use crate::support::regions::{migrate, settings, until_counted};
use crate::support::verdict::{TELLING, Verdict, until_layer};

const SCOPES: [&str; 5] = ["local", "regional", "global", "split", "strict"];
const POLICIES: [&str; 4] = ["local", "share", "allow", "deny"];

/// The limit of every rule. With two regions a region's part is half of it, and with two processes so is a process's share.
const LIMIT: u32 = 8;
const REGIONS: u32 = 2;
const PROCESSES: u32 = 2;
/// What `allow` admits of the limit.
const LAST_RESORT: u32 = 10;

/// Who does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Outage {
    redis: bool,
    mysql: bool,
    owner: bool,
}

const NONE: Outage = Outage { redis: false, mysql: false, owner: false };
const REDIS: Outage = Outage { redis: true, ..NONE };
const MYSQL: Outage = Outage { mysql: true, ..NONE };
const BOTH: Outage = Outage { redis: true, mysql: true, ..NONE };
const OWNER: Outage = Outage { owner: true, ..NONE };

/// How a cell is answered: how many each process admits, asked one after the other, and what it says when it admits and when
/// it does not.
#[derive(Clone, Debug, PartialEq)]
struct Answers {
    admitted: [u32; 2],
    /// The second process may have heard of what the first admitted, if it was asked late enough, and admits less then.
    hears: bool,
    /// Hits of the other process that are known by the region's row alone. If a newer row is read between two requests, they may
    /// be taken for hits of one's own that it has, and so many more are admitted.
    in_row: u32,
    ok: String,
    over: String,
    layer: String,
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answers { admitted: [first, second], hears, ok, over, layer, .. } = self;
        let at_most = if *hears { "at most " } else { "" };
        write!(f, "{first} + {at_most}{second} {ok}, then {over}, enforced: {layer}")
    }
}

impl Answers {
    fn new(admitted: [u32; 2], ok: &str, over: &str, layer: &str) -> Answers {
        let ok = if admitted == [0, 0] { "-" } else { ok };
        Answers { admitted, hears: false, in_row: 0, ok: ok.into(), over: over.into(), layer: layer.into() }
    }

    /// Where the region's row leads from the first process to the second.
    fn heard_by_the_row(self) -> Answers {
        Answers { hears: true, ..self }
    }

    fn allows(&self, heard: &Answers) -> bool {
        let Answers { admitted: [first, second], in_row, .. } = *self;
        let least = [first, if self.hears { 0 } else { second }];
        let is_in_range = |at: usize| (least[at]..=self.admitted[at] + in_row).contains(&heard.admitted[at]);
        let others = Answers { admitted: self.admitted, hears: self.hears, in_row, ..heard.clone() };
        is_in_range(0) && is_in_range(1) && *self == others
    }

    /// Of a rule whose store is there.
    fn usual(admitted: [u32; 2], layer: &str) -> Answers {
        Answers::new(admitted, "within_limit", "over_limit", layer)
    }

    /// Of processes that are on their own with what they have in memory. Of the limit so much is taken already, of a
    /// process's share so much.
    fn alone(policy: &str, limit: u32, share: u32, taken: u32, own: u32) -> Answers {
        let each = match policy {
            "local" => limit.saturating_sub(taken),
            "share" => share.saturating_sub(own).min(limit.saturating_sub(taken)),
            "allow" => limit * LAST_RESORT - taken,
            _ => 0,
        };
        let reason = format!("outage_{policy}");
        Answers::new([each; 2], &reason, &reason, "local")
    }

    /// On a fresh key: the table.
    fn expected(scope: &str, policy: &str, outage: Outage) -> Answers {
        let part = LIMIT / REGIONS;
        let alone = |limit: u32| Answers::alone(policy, limit, limit / PROCESSES, 0, 0);
        match (scope, policy) {
            ("local", _) => Answers::usual([LIMIT; 2], "local"),
            ("strict", _) if outage.owner => alone(LIMIT),
            ("strict", _) => Answers::usual([LIMIT, 0], "strict"),
            ("split", _) if outage.redis => alone(part),
            ("split", _) => Answers::usual([part, 0], "regional"),
            ("global", "share") if outage == BOTH => Answers::alone(policy, LIMIT, part / PROCESSES, 0, 0),
            ("global", "local" | "allow") if outage == REDIS => alone(LIMIT).heard_by_the_row(),
            (_, _) if outage.redis => alone(LIMIT),
            ("global", "share") if outage.mysql => Answers::new([part, 0], "outage_share", "outage_share", "regional"),
            ("global", _) if !outage.mysql => Answers::usual([LIMIT, 0], "global"),
            _ => Answers::usual([LIMIT, 0], "regional"),
        }
    }
}

fn rules() -> String {
    let rule = |(scope, policy): (&str, &str)| {
        format!(
            "  - {{key: {scope}_{policy}, rate_limit: {{requests_per_unit: {LIMIT}, unit: year, scope: {scope}, \
             on_outage: {policy}}}}}\n"
        )
    };
    format!("domain: d\ndescriptors:\n{}", pairs().map(rule).collect::<String>())
}

fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    SCOPES.into_iter().flat_map(|scope| POLICIES.map(|policy| (scope, policy)))
}

/// What has been asked, and what was answered otherwise than it should be.
struct Table {
    clients: [Client; 2],
    rows: Vec<String>,
    wrong: usize,
}

impl Table {
    async fn of(fleet: &Fleet) -> Table {
        let clients = [fleet.services[0].client().await, fleet.services[1].client().await];
        Table { clients, rows: Vec::new(), wrong: 0 }
    }

    /// Asks for all cells of a column.
    async fn column(&mut self, name: &str, outage: Outage) {
        for (scope, policy) in pairs() {
            self.cell(name, scope, policy, &Answers::expected(scope, policy, outage)).await;
        }
    }

    /// Asks both processes on the cell's key for some more than they are to admit.
    async fn cell(&mut self, name: &str, scope: &str, policy: &str, expected: &Answers) {
        let key = format!("{scope}_{policy}={name}");
        let mut answers = Vec::new();
        for (number, client) in self.clients.iter_mut().enumerate() {
            for _ in 0..expected.admitted[number] + 2 {
                let verdict = Verdict::to(client, ask_one(&key)).await;
                answers.push((number, verdict.map_err(|error| format!("{:?}", error.code()))));
            }
        }
        let heard = heard(&answers, scope);
        let is_right = heard.as_ref().is_ok_and(|heard| expected.allows(heard));
        let heard = heard.map_or_else(|problem| problem, |answers| answers.to_string());
        self.wrong += usize::from(!is_right);
        let mark = if is_right { String::new() } else { format!("   WRONG, should be {expected}") };
        self.rows.push(format!("{name:12} {scope:8} {policy:5} {heard}{mark}"));
    }

    fn assert_right(&self) {
        println!("{}", self.rows.join("\n"));
        assert_eq!(self.wrong, 0, "cells are wrong");
    }
}

/// The answers in short, or what does not go together in them.
fn heard(answers: &[(usize, Result<Verdict, String>)], scope: &str) -> Result<Answers, String> {
    let mut admitted = [0; 2];
    let mut verdicts = Vec::new();
    for (process, answer) in answers {
        let verdict = answer.as_ref().map_err(|error| format!("a call failed: {error}"))?;
        admitted[*process] += u32::from(verdict.is_ok);
        verdicts.push(verdict);
    }
    let (ok, over): (Vec<&Verdict>, Vec<&Verdict>) = verdicts.iter().copied().partition(|verdict| verdict.is_ok);
    if let Some(verdict) = over.iter().find(|verdict| verdict.retry_after_s.is_none_or(|wait| wait < 1)) {
        return Err(format!("nobody is told when to come back: {verdict:?}"));
    }
    if let Some(verdict) = over.iter().find(|verdict| verdict.reason == "outage_deny" && verdict.by != "outage") {
        return Err(format!("denied for the outage by somebody else: {verdict:?}"));
    }
    if let Some(verdict) = verdicts.iter().find(|verdict| verdict.scope != scope) {
        return Err(format!("of another scope: {verdict:?}"));
    }
    Ok(Answers {
        admitted,
        hears: false,
        in_row: 0,
        ok: words(ok.iter().map(|verdict| &verdict.reason)),
        over: words(over.iter().map(|verdict| &verdict.reason)),
        layer: words(verdicts.iter().map(|verdict| &verdict.layer)),
    })
}

/// The words that occur, each once.
fn words<'a>(words: impl Iterator<Item = &'a String>) -> String {
    let mut words: Vec<&str> = words.map(String::as_str).collect();
    words.sort_unstable();
    words.dedup();
    if words.is_empty() { "-".to_owned() } else { words.join("|") }
}

/// Two processes of a region of two, with all that a region can have.
struct Stores {
    mariadb: MariaDbServer,
    redis: RedisServer,
    owner: RedisServer,
}

impl Stores {
    fn start() -> (Stores, Fleet) {
        let mariadb = MariaDbServer::start();
        migrate(&mariadb);
        let (redis, owner) = (RedisServer::start(), RedisServer::start());
        let mut env = settings(&mariadb, "eu", "eu,us");
        let more = [
            ("STRICT_REDIS_URL", owner.url()),
            ("TIDEGATE_STRICT_TIMEOUT", PATIENT.1.to_owned()),
            // A few turns, which come every second, and the time in which somebody else speaks for the region.
            ("TIDEGATE_GLOBAL_OUTAGE_AFTER", "6s".to_owned()),
        ];
        env.extend(more.map(|(name, value)| (name.to_owned(), value)));
        let env = env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let env: Vec<(&str, &str)> = env.chain(TELLING).collect();
        let fleet = Fleet::together(PROCESSES as usize, &rules(), &redis.url(), &env);
        until_layers(&fleet, NONE);
        for service in &fleet.services {
            ["origin", "owner"].into_iter().for_each(|store| until_settled(service, store));
        }
        let stores = Stores { mariadb, redis, owner };
        stores.until_owner_is_known(&fleet);
        (stores, fleet)
    }

    /// Both processes have told the owner that they are alive, and each knows of both.
    fn until_owner_is_known(&self, fleet: &Fleet) {
        until_equal(PATIENCE, f64::from(PROCESSES * PROCESSES), || fleet.metric("tidegate_owner_live_processes"));
    }
}

/// Waits until both processes see what is out as down, and all else as up.
fn until_layers(fleet: &Fleet, outage: Outage) {
    for (layer, is_out) in [("regional", outage.redis), ("global", outage.mysql), ("strict", outage.owner)] {
        until_layer(&fleet.services, layer, !is_out);
    }
}

/// Two hits here, one at each process, and two in the other region, of which both processes have heard.
async fn take_some(table: &mut Table, stores: &Stores, fleet: &Fleet, key: &str) {
    for client in &mut table.clients {
        assert!(Verdict::on(client, key).await.is_ok);
    }
    let of_key = format!("namespace = '{}'", key.split('=').next().unwrap());
    let count = format!("SELECT COALESCE(SUM(count), 0) FROM ratelimit_window_counts WHERE {of_key}");
    until(PATIENCE, "it is published", || (stores.mariadb.number(&count) > 0).then_some(()));
    // So little more than that is not worth a word to other regions.
    stores.mariadb.sql(&format!(
        "UPDATE ratelimit_window_counts SET count = 2, updated_at = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED) WHERE \
         {of_key}"
    ));
    stores.mariadb.sql(&format!(
        "INSERT INTO ratelimit_window_counts (workspace_id, namespace, identifier, duration_ms, sequence, region, count, \
         refunds, expires_at, updated_at) SELECT workspace_id, namespace, identifier, duration_ms, sequence, 'us', 2, 0, \
         expires_at, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED) FROM ratelimit_window_counts WHERE {of_key}"
    ));
    fleet.services.iter().for_each(|service| until_counted(service, key, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_is_answered_by_its_policy_in_every_outage() {
    let (mut stores, fleet) = Stores::start();
    let mut table = Table::of(&fleet).await;
    // Keys that are known when the outage begins: some of them used by both regions, some spent.
    for policy in POLICIES {
        take_some(&mut table, &stores, &fleet, &format!("global_{policy}=taken")).await;
        table.cell("spent", "regional", policy, &Answers::usual([LIMIT, 0], "regional")).await;
    }
    table.column("none", NONE).await;

    stores.owner.kill();
    until_layers(&fleet, OWNER);
    table.column("owner", OWNER).await;
    stores.owner.restart_empty();
    until_layers(&fleet, NONE);
    stores.until_owner_is_known(&fleet);

    stores.redis.stop();
    until_layers(&fleet, REDIS);
    table.column("redis", REDIS).await;
    for policy in POLICIES {
        let mut taken = Answers::alone(policy, LIMIT, LIMIT / PROCESSES, 4, 1);
        if ["local", "allow"].contains(&policy) {
            // The first process knows of the second's hit by the region's row only.
            taken = Answers { in_row: 1, ..taken.heard_by_the_row() };
        }
        table.cell("taken", "global", policy, &taken).await;
        let spent = Answers::alone(policy, LIMIT, LIMIT / PROCESSES, LIMIT, 0);
        table.cell("spent", "regional", policy, &spent).await;
    }
    stores.mariadb.stop();
    until_layers(&fleet, BOTH);
    table.column("both", BOTH).await;
    stores.redis.cont();
    until_layers(&fleet, MYSQL);
    table.column("mysql", MYSQL).await;
    stores.mariadb.cont();
    until_layers(&fleet, NONE);
    table.column("none again", NONE).await;
    table.assert_right();

    let errors = fleet.services.iter().map(|service| service.metric("tidegate_errors_total{reason=\"overload\"}"));
    assert!(errors.flatten().all(|errors| errors == 0.0));
    for layer in ["regional", "global", "strict"] {
        let changes =
            |to: &str| fleet.metric(&format!("tidegate_layer_changes_total{{layer=\"{layer}\",to=\"{to}\"}}"));
        assert_eq!(changes("down"), f64::from(PROCESSES), "{layer} went once, for each");
        assert!(changes("up") >= changes("down"), "{layer} came back by itself");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_regions_redis_is_the_owner_its_outage_is_the_owners() {
    let mut redis = RedisServer::start();
    let env: Vec<(&str, &str)> = [PATIENT, ("TIDEGATE_STRICT_TIMEOUT", PATIENT.1)].into_iter().chain(TELLING).collect();
    let rules: String = rules()
        .lines()
        .filter(|line| !line.contains("key") || line.contains("strict_"))
        .fold(String::new(), |rules, line| rules + line + "\n");
    let fleet = Fleet::together(PROCESSES as usize, &rules, &redis.url(), &env);
    fleet.until_settled();
    let mut table = Table::of(&fleet).await;
    let column = async |table: &mut Table, name: &str, outage: Outage| {
        for policy in POLICIES {
            table.cell(name, "strict", policy, &Answers::expected("strict", policy, outage)).await;
        }
    };
    until_layer(&fleet.services, "strict", true);
    column(&mut table, "none", NONE).await;
    redis.kill();
    until_layer(&fleet.services, "strict", false);
    until_layer(&fleet.services, "regional", false);
    column(&mut table, "redis", OWNER).await;
    redis.restart_empty();
    until_layer(&fleet.services, "strict", true);
    column(&mut table, "none again", NONE).await;
    table.assert_right();
}
