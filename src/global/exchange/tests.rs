//! The exchange by hand: one process, and a table in memory.

mod reads;

use std::sync::atomic::Ordering;

use super::*;
use crate::engine::Modes;
use crate::engine::reach::{Layers, RegionIndex};
use crate::engine::table::foreign::Counts;
use crate::engine::tests::seed;
use crate::global::import::ReadScope;
use crate::global::model::Rows;
use crate::global::publish::StatementOutcome;
use crate::global::row::OwnRow;
use crate::request::{Bounds, Descriptor, DescriptorEntry as RequestEntry, Hits, Request};
use crate::rules::{Options, RuleText};
use crate::secret::Secret;
use crate::simulate::random::Random;

const START_MS: u64 = 1_800_000_000_000;
/// Everything, from the start.
const ALL: ReadScope = ReadScope::All { from: None };

fn rules(limit: &str) -> Ruleset {
    let text = format!("{{domain: d, descriptors: [{{key: k, {limit}}}]}}");
    let loaded = Ruleset::load(&[RuleText { name: "t".into(), text }], &Options::default());
    loaded.ruleset.unwrap_or_else(|| panic!("{:?}", loaded.problems))
}

const HOUR: &str = "rate_limit: {requests_per_unit: 100, unit: hour}";

/// A process of the region `a`, without an origin.
struct Process {
    engine: Arc<Engine>,
    exchange: Exchange,
    ruleset: Ruleset,
    now: Now,
}

impl Process {
    fn new(keys_max: usize, ruleset: Ruleset) -> Process {
        let layers = Layers { is_global: true, place: RegionIndex { region: 0, regions: 2 }, ..Layers::ALONE };
        let engine = Arc::new(Engine::with(keys_max, layers).hashed_by(Random::new(seed::seed()).hasher()));
        let now = Now { wall_ms: START_MS, mono_us: 1_000_000 };
        let options = ExchangeOptions {
            region: "a".into(),
            regions: vec!["a".into(), "b".into()],
            key_names: KeyNames::new(Secret::new("secret")),
            timeout_ms: 2000,
            seed: 1,
            process: None,
        };
        let exchange = Exchange::new(engine.clone(), options, now);
        exchange.set_rules(&ruleset, now);
        Process { engine, exchange, ruleset, now }
    }

    fn reload(&mut self, ruleset: Ruleset) {
        self.exchange.set_rules(&ruleset, self.now);
        self.ruleset = ruleset;
    }

    /// Whether these hits are admitted; negative ones are given back.
    fn ask(&self, value: &str, hits: i64) -> bool {
        let entries = [RequestEntry { key: "k", value }].into_iter().collect();
        let hits = match u64::try_from(hits) {
            Ok(hits) => Hits::OfRequest(hits),
            Err(_) => Hits::Refund(hits.unsigned_abs()),
        };
        let descriptors = [Descriptor { entries, hits, limit: None }].into_iter().collect();
        let request = Request::new("d", descriptors, &Bounds::default()).unwrap();
        let decision = self.engine.decide(&self.ruleset, &request, Modes::default(), self.now.wall_ms);
        self.exchange.match_digests(self.now);
        !decision.is_over
    }

    /// Publishes, with `sent` for an answer, and returns how many rows were sent. Only with `Done` does the table have
    /// them.
    fn publish(&mut self, rows: &mut Rows, sent: StatementOutcome) -> usize {
        self.pass(1000);
        let mut sending = self.exchange.collect(self.now);
        let mut count = 0;
        while let Some(chunk) = sending.next() {
            count += chunk.len();
            if sent == StatementOutcome::Done {
                rows.commit("a", chunk, self.now.wall_ms);
            }
            sending.sent(sent);
        }
        match sending.is_empty() {
            true => self.exchange.published_nothing(None, self.now),
            false => self.exchange.published(&sending, self.now),
        }
        count
    }

    fn import(&mut self, rows: &Rows) -> ReadScope {
        self.pass(1000);
        let (reading, mut hearing) = self.exchange.reading(self.now);
        for row in rows.read(&reading, self.now.wall_ms) {
            self.exchange.hear(&mut hearing, row, self.now);
        }
        self.exchange.imported(hearing, &reading, self.now.wall_ms, self.now);
        reading
    }

    /// Imports from a server that gets through `most` rows of a full reading before the time is up.
    fn import_part(&mut self, rows: &Rows, most: usize) -> ReadScope {
        self.pass(1000);
        let (reading, mut hearing) = self.exchange.reading(self.now);
        let read = rows.read(&reading, self.now.wall_ms);
        let is_cut = matches!(reading, ReadScope::All { .. }) && read.len() > most;
        let heard = if is_cut { &read[..most] } else { &read };
        let server_ms = self.now.wall_ms;
        heard.iter().for_each(|row| self.exchange.hear(&mut hearing, row.clone(), self.now));
        if matches!(reading, ReadScope::All { .. }) {
            self.pass(60_000);
        }
        match is_cut {
            true => self.exchange.partly_imported(hearing, &reading, server_ms, self.now),
            false => self.exchange.imported(hearing, &reading, server_ms, self.now),
        };
        reading
    }

    /// Looks up what may be missing, and returns how many cells were asked for.
    fn seek(&mut self, rows: &Rows) -> usize {
        let mut cells = 0;
        while let Some(mut lookup) = self.exchange.seek(self.now) {
            cells += lookup.cells.len();
            for row in rows.find(&lookup.cells) {
                self.exchange.found(&mut lookup, row, self.now);
            }
            self.exchange.sought(lookup, self.now);
        }
        cells
    }

    fn pass(&mut self, ms: u64) {
        self.now = Now { wall_ms: self.now.wall_ms + ms, mono_us: self.now.mono_us + ms * 1000 };
    }
}

/// A row of the region `b`, for a key of the rule `k`.
fn row_of_b(value: &str, hits: u64, now: Now) -> OwnRow {
    let mut identifier = vec![value.len() as u8];
    identifier.extend_from_slice(value.as_bytes());
    let cell = CellName {
        workspace: (*b"d").into(),
        namespace: (*b"k").into(),
        identifier: identifier.into(),
        duration_ms: 3_600_000,
        sequence: now.wall_ms / 3_600_000,
    };
    OwnRow { cell, counts: Counts { hits, refunds: 0 } }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[test]
fn keys_that_only_others_ask_for_are_bounded() {
    let mut process = Process::new(40, rules(HOUR));
    let mut rows = Rows::default();
    let all: Vec<OwnRow> = (0..25).map(|n| row_of_b(&n.to_string(), 90, process.now)).collect();
    rows.commit("b", &all, process.now.wall_ms);
    process.import(&rows);
    let counts = &process.exchange.counts;
    assert_eq!((count(&counts.created_keys), count(&counts.roomless_rows)), (10, 15));
    assert_eq!(process.engine.stats().keys, 10);
    // Keys that are asked for here no longer count as others' alone, so that more of these find room.
    (0..25).for_each(|n| assert!(process.ask(&n.to_string(), 0)));
    process.exchange.doubt();
    process.import(&rows);
    assert_eq!(count(&process.exchange.counts.created_keys), 20);
    let known = (0..25).filter(|n| !process.ask(&n.to_string(), 11)).count();
    assert_eq!(known, 20);
}

#[test]
fn keys_whose_rows_found_no_room_are_looked_up_when_they_are_asked_for() {
    for sensitive in ["", "sensitive: true, "] {
        let mut process = Process::new(40, rules(&format!("{sensitive}{HOUR}")));
        let mut rows = Rows::default();
        let mut all: Vec<OwnRow> = (0..25).map(|n| row_of_b(&n.to_string(), 95, process.now)).collect();
        if !sensitive.is_empty() {
            // The digests that name them, learned from a process that has asked for them.
            let mut other = Process::new(100, rules(&format!("{sensitive}{HOUR}")));
            (0..25).for_each(|n| assert!(other.ask(&n.to_string(), 95)));
            let mut names = Rows::default();
            other.publish(&mut names, StatementOutcome::Done);
            let named = names.read(&ALL, other.now.wall_ms).into_iter();
            all = named.map(|row| OwnRow { cell: row.cell, counts: row.counts }).collect();
        }
        rows.commit("b", &all, process.now.wall_ms);
        process.import(&rows);
        assert_eq!(count(&process.exchange.counts.roomless_rows), 15);
        assert_eq!(process.seek(&rows), 0, "nobody has asked for any");
        (0..25).for_each(|n| assert!(process.ask(&n.to_string(), 1)));
        assert_eq!(process.seek(&rows), 25 * 3, "of three windows each");
        (0..25).for_each(|n| assert!(!process.ask(&n.to_string(), 5), "{n}: 1 here and 95 there"));
        assert_eq!((process.seek(&rows), count(&process.exchange.counts.sought_keys)), (0, 25), "once");
        // Keys are looked up until what was left out has expired.
        process.ask("new", 1);
        assert_eq!(process.seek(&rows), 3);
        process.pass(2 * 3_600_000);
        process.ask("newer", 1);
        assert_eq!(process.seek(&rows), 0);
    }
}

#[test]
fn a_key_that_was_given_up_with_the_counts_of_others_gets_them_back() {
    let mut process = Process::new(40, rules(HOUR));
    let mut rows = Rows::default();
    process.import(&rows);
    assert!(process.ask("x", 1));
    rows.commit("b", &[row_of_b("x", 95, process.now)], process.now.wall_ms);
    process.import(&rows);
    (0..200).for_each(|n| assert!(process.ask(&format!("other{n}"), 1)));
    process.seek(&rows);
    assert!(process.ask("x", 5), "it was given up");
    assert_eq!(process.seek(&rows), 3);
    assert!(!process.ask("x", 1), "5 here and 95 there");
    // A full reading hears everything that is missing.
    process.exchange.doubt();
    process.import(&rows);
    process.ask("new", 1);
    assert_eq!(process.seek(&rows), 0);
}

#[test]
fn nothing_is_looked_up_as_long_as_nothing_is_missing() {
    let mut process = Process::new(40, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &[row_of_b("x", 95, process.now)], process.now.wall_ms);
    // While everything is still to be read, a key may lack something.
    assert!(process.ask("x", 1));
    process.import(&rows);
    assert_eq!(process.seek(&rows), 0, "and does not, once it was");
    assert!(!process.ask("x", 5));
    // These keys come and go, and nobody else counts them.
    for n in 0..200 {
        assert!(process.ask(&format!("other{n}"), 1));
        process.import(&rows);
        process.ask("x", 0);
    }
    assert!(process.engine.stats().evicted > 100);
    assert_eq!((process.seek(&rows), count(&process.exchange.counts.sought_keys)), (0, 0));
}

#[test]
fn a_lookup_that_fails_is_tried_again_and_so_many_wait_at_most() {
    let mut process = Process::new(100_000, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &[row_of_b("x", 95, process.now), row_of_b("y", 95, process.now)], process.now.wall_ms);
    assert_eq!(process.import_part(&rows, 1), ALL);
    assert!(process.ask("y", 1), "it was not heard of");
    let lookup = process.exchange.seek(process.now).unwrap();
    assert_eq!(lookup.cells.len(), 3);
    process.exchange.not_sought(lookup);
    assert_eq!(process.seek(&rows), 3);
    assert!(!process.ask("y", 5));
    // More keys than the queue has room for: one that finds none gets in with its next request.
    let values: Vec<String> = (0..20_000).map(|n| format!("other{n}")).collect();
    values.iter().for_each(|value| assert!(process.ask(value, 1)));
    let first = process.seek(&rows);
    assert!(first < 3 * 20_000, "{first}");
    values.iter().for_each(|value| assert!(process.ask(value, 1)));
    assert_eq!(first + process.seek(&rows), 3 * 20_000);
}

#[test]
fn a_failed_turn_is_repeated_and_a_row_that_is_refused_comes_later() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    assert!(process.ask("x", 60));
    assert_eq!(process.publish(&mut rows, StatementOutcome::Failed), 1);
    assert_eq!(process.publish(&mut rows, StatementOutcome::Refused), 1);
    assert!(process.ask("x", 1));
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 0, "it is left alone for a while");
    process.pass(10_000);
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 1);
    assert_eq!(rows.total("a").hits, 61);
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 0, "nothing is new");
}

#[test]
fn keys_that_were_given_up_do_not_fill_the_queue() {
    let mut process = Process::new(10, rules("rate_limit: {requests_per_unit: 2, unit: hour}"));
    let mut rows = Rows::default();
    for n in 0..50_000 {
        process.ask(&n.to_string(), 1);
        if n % 1000 == 0 {
            process.publish(&mut rows, StatementOutcome::Failed);
        }
    }
    let waiting = process.engine.table().foreign_ledger().noted();
    assert!(waiting <= 6_000, "{waiting} of 10 keys");
    process.publish(&mut rows, StatementOutcome::Done);
    assert!(rows.rows() > 0, "those that are here are still told");
}

#[test]
fn what_the_table_has_lost_is_told_again() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    assert!(process.ask("x", 60));
    process.publish(&mut rows, StatementOutcome::Done);
    assert_eq!(process.import(&rows), ALL);
    rows = Rows::default();
    assert!(matches!(process.import(&rows), ReadScope::Since { .. }));
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 0, "nobody has noticed");
    process.exchange.doubt();
    assert_eq!(process.import(&rows), ALL);
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 1);
    assert_eq!(rows.total("a").hits, 60);
}

#[test]
fn rules_that_change_change_what_is_shared() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &[row_of_b("x", 95, process.now)], process.now.wall_ms);
    process.import(&rows);
    assert!(!process.ask("x", 10));
    process.reload(rules("rate_limit: {requests_per_unit: 100, unit: hour, scope: regional}"));
    assert!(process.ask("x", 60), "others do not count here any more");
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 0);
    process.import(&rows);
    assert_eq!(count(&process.exchange.counts.unknown_rows), 1);
    process.reload(rules(HOUR));
    assert!(process.ask("x", 1));
    assert_eq!(process.seek(&rows), 3, "before its rule is read");
    assert!(!process.ask("x", 1), "61 and 95");
}

#[test]
fn a_rule_that_becomes_sensitive_tells_no_more_values() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    assert!(process.ask("hunter2", 60));
    process.publish(&mut rows, StatementOutcome::Done);
    process.reload(rules(&format!("sensitive: true, {HOUR}")));
    assert!(process.ask("hunter2", 10));
    process.publish(&mut rows, StatementOutcome::Done);
    let identifiers: Vec<Box<[u8]>> =
        rows.read(&ALL, process.now.wall_ms).into_iter().map(|row| row.cell.identifier).collect();
    assert_eq!(identifiers.len(), 2);
    let plain = identifiers.iter().filter(|identifier| identifier.ends_with(b"hunter2")).count();
    assert_eq!(plain, 1, "the one from before");
    assert_eq!(rows.total("a").hits, 60 + 70);
    // A row from others finds its key by the digest.
    let mut heard = rows.read(&ALL, process.now.wall_ms).into_iter();
    let digest = heard.find(|row| row.counts.hits == 70).unwrap().cell;
    rows.commit("b", &[OwnRow { cell: digest, counts: Counts { hits: 30, refunds: 0 } }], process.now.wall_ms);
    process.import(&rows);
    assert!(!process.ask("hunter2", 1));
}

#[test]
fn a_clock_that_is_ahead_publishes_nothing_for_later() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    process.import(&rows);
    process.now.wall_ms += 3 * 3_600_000;
    assert!(process.ask("x", 60));
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 0);
}

#[test]
fn a_reading_that_takes_long_moves_no_key_back() {
    let mut process = Process::new(100, rules("rate_limit: {requests_per_unit: 100, window: 10s}"));
    assert!(process.ask("x", 1));
    let (reading, mut hearing) = process.exchange.reading(process.now);
    process.pass(30_000);
    assert!(process.ask("x", 60));
    let mut others = Rows::default();
    let mut row = row_of_b("x", 5, process.now);
    row.cell = CellName { duration_ms: 10_000, sequence: process.now.wall_ms / 10_000, ..row.cell };
    others.commit("b", &[row], process.now.wall_ms);
    for row in others.read(&ALL, process.now.wall_ms) {
        process.exchange.hear(&mut hearing, row, process.now);
    }
    process.exchange.imported(hearing, &reading, process.now.wall_ms, process.now);
    assert!(!process.ask("x", 36) && process.ask("x", 35), "60 here and 5 there");
}
