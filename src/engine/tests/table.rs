//! The table at its cap: which keys go, which stay, and what that costs.

use super::*;
use crate::engine::decide::{Case, Check, Group, StoreViews};
use crate::engine::key::Key;
use crate::engine::table::Table;
use crate::rules::limit::{Space, Terms};
use crate::rules::policy::Algorithm;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {requests_per_unit: 2, unit: hour}}
  - {key: short, rate_limit: {requests_per_unit: 100, unit: second}}
  - {key: bucket, rate_limit: {requests_per_unit: 100, unit: second, algorithm: gcra}}
  - {key: exact, rate_limit: {requests_per_unit: 100, unit: second, algorithm: exact_window}}
";

fn bench(keys_max: usize) -> Bench {
    Bench::seeded(RULES, keys_max, seed::seed())
}

/// INV-7.
#[test]
fn the_cap_holds_and_over_limit_keys_stay_denied() {
    for keys_max in [100, 1000, 20_000] {
        let bench = bench(keys_max);
        let denied: Vec<String> = (0..keys_max / 10).map(|n| format!("k=denied-{n}")).collect();
        for entries in &denied {
            bench.decide(&[ask_for(entries, Hits::OfRequest(2))], 0);
        }
        for n in 0..keys_max * 10 {
            bench.decide(&[ask(&format!("k=flood-{n}"))], 1000);
        }
        let stats = bench.engine.stats();
        assert!(stats.keys <= keys_max, "{stats:?}");
        assert!(stats.evicted as usize >= keys_max * 9, "{stats:?}");
        assert_eq!(stats.evicted_over_limit, 0, "{stats:?}");
        for entries in &denied {
            assert!(bench.decide(&[ask(entries)], 2000).is_over, "{entries} of {keys_max}");
        }
    }
}

#[test]
fn keys_in_use_outlast_a_flood_of_strangers() {
    let bench = bench(10_000);
    let regulars: Vec<String> = (0..1000).map(|n| format!("short=regular-{n}")).collect();
    for _ in 0..20 {
        regulars.iter().for_each(|entries| drop(bench.decide(&[ask(entries)], 0)));
    }
    for n in 0..50_000 {
        bench.decide(&[ask(&format!("short=flood-{n}"))], 500);
    }
    let kept =
        regulars.iter().filter(|entries| bench.said(&[ask_for(entries, Hits::Own(0))], 999) == "OK: OK 80").count();
    assert_eq!(kept, regulars.len());
}

/// Fills a table of one shard with keys, some of them in use, then lets strangers come. Returns how many of the keys in use
/// it has lost.
fn lost_to_a_flood(keys_max: usize, seed: u64, is_in_use: impl Fn(usize) -> bool, strangers: usize) -> usize {
    let bench = Bench::seeded(RULES, keys_max, seed);
    for n in 0..keys_max {
        for _ in 0..if is_in_use(n) { 16 } else { 1 } {
            bench.decide(&[ask(&format!("short=key-{n}"))], 0);
        }
    }
    for n in 0..strangers {
        bench.decide(&[ask(&format!("short=stranger-{n}"))], 500);
    }
    assert_eq!(bench.engine.stats().keys, keys_max);
    let is_kept = |n: usize| bench.said(&[ask_for(&format!("short=key-{n}"), Hits::Own(0))], 500) == "OK: OK 84";
    (0..keys_max).filter(|n| is_in_use(*n) && !is_kept(*n)).count()
}

/// One run in four found it: in shards of 930, 961 and 1020 slots the eviction hand went on by a length that came to one
/// slot, met the keys in use in a row, and settled for one of them.
#[test]
fn keys_in_use_outlast_a_flood_however_many_slots_there_are() {
    let mut random = Random::new(seed::seed());
    let mut losses = Vec::new();
    for keys_max in 825..1025 {
        match lost_to_a_flood(keys_max, random.number(), |n| n < 100, 2000) {
            0 => {}
            lost => losses.push((keys_max, lost)),
        }
    }
    assert!(losses.is_empty(), "of 100 keys in use, by the size of the table: {losses:?}");
}

/// For long stretches the hand comes to keys in use only: the strangers have to replace each other.
#[test]
fn keys_in_use_outlast_a_flood_where_they_are_nearly_all() {
    let mut random = Random::new(seed::seed());
    let mut losses = Vec::new();
    for keys_max in 960..1000 {
        // The last one is a stranger: where none has come yet, there is none to replace.
        let in_use: Vec<bool> = (0..keys_max).map(|n| random.below(32) > 0 && n + 1 < keys_max).collect();
        match lost_to_a_flood(keys_max, random.number(), |n| in_use[n], 100) {
            0 => {}
            lost => losses.push((keys_max, lost)),
        }
    }
    assert!(losses.is_empty(), "of nearly all keys, by the size of the table: {losses:?}");
}

#[test]
fn expired_keys_go_first_and_are_not_evictions() {
    let bench = bench(1000);
    for n in 0..900 {
        bench.decide(&[ask(&format!("short=old-{n}"))], 0);
    }
    for n in 0..100 {
        bench.decide(&[ask(&format!("k=live-{n}"))], 0);
    }
    for n in 0..850 {
        bench.decide(&[ask(&format!("k=new-{n}"))], 10_000);
    }
    let stats = bench.engine.stats();
    assert_eq!(stats.evicted, 0, "{stats:?}");
    assert!(stats.keys <= 1000 && stats.expired >= 850, "{stats:?}");
    for n in 0..100 {
        assert_eq!(bench.said(&[ask_for(&format!("k=live-{n}"), Hits::Own(0))], 10_000), "OK: OK 1");
    }
}

#[test]
fn the_sweep_removes_expired_keys_of_every_algorithm_and_no_others() {
    let bench = bench(100_000);
    for n in 0..5000 {
        let texts = ["short", "bucket", "exact", "k"].map(|key| format!("{key}={n}"));
        bench.decide(&[ask(&texts[0]), ask(&texts[1]), ask(&texts[2]), ask(&texts[3])], 0);
    }
    assert_eq!(bench.engine.stats().keys, 20_000);
    bench.engine.expire(START_MS + 500);
    assert!(bench.engine.stats().keys >= 15_000, "at most the drained buckets are gone");
    bench.engine.expire(START_MS + 10_000);
    assert_eq!(bench.engine.stats().keys, 5000);
    // A key that is used again after its sweep was due lives on.
    bench.decide(&[ask("short=again")], 10_000);
    bench.decide(&[ask_for("short=again", Hits::OfRequest(2))], 11_900);
    bench.engine.expire(START_MS + 12_100);
    assert_eq!(bench.said(&[ask_for("short=again", Hits::Own(0))], 12_100), "OK: OK 99");
    bench.engine.expire(START_MS + 4 * 60 * 60 * 1000);
    assert_eq!(bench.engine.stats().keys, 0);
}

#[test]
fn when_everything_is_over_its_limit_room_is_still_made() {
    let bench = bench(500);
    for n in 0..5000 {
        bench.decide(&[ask_for(&format!("k=full-{n}"), Hits::OfRequest(2))], 0);
    }
    let stats = bench.engine.stats();
    assert!(stats.keys <= 500 && stats.evicted_over_limit > 0, "{stats:?}");
    assert_eq!(stats.evicted, 4500);
}

/// Found by a flood on a limit of one: every insertion looked through all slots for something that is not over.
#[test]
fn a_table_of_denied_keys_takes_new_ones_without_searching_all_of_them() {
    const KEYS: usize = 20_000;
    let bench = bench(KEYS);
    let fill = |from: usize, to: usize| {
        let before = bench.engine.table().looks();
        for n in from..to {
            bench.decide(&[ask_for(&format!("k=full-{n}"), Hits::OfRequest(2))], 0);
        }
        bench.engine.table().looks() - before
    };
    assert_eq!(fill(0, KEYS), 0, "there is room");
    // Each slot once, to see that all are over, and one for each key that goes. Searching looks at a thousand for each.
    let looks = fill(KEYS, 2 * KEYS);
    assert!((KEYS..5 * KEYS).contains(&(looks as usize)), "{looks} slots were looked at for {KEYS} keys");
}

#[test]
fn the_keys_of_one_request_do_not_make_room_for_each_other() {
    let bench = bench(4);
    let texts: Vec<String> = (0..8).map(|n| format!("k={n}")).collect();
    let asks: Vec<Ask<'_>> = texts.iter().map(|entries| ask(entries)).collect();
    assert_eq!(bench.said(&asks, 0), "OK: OK 1, OK 1, OK 1, OK 1, OK 1, OK 1, OK 1, OK 1");
    assert_eq!(
        bench.said(&asks[..4], 0).matches("OK 0").count() + bench.said(&asks[4..], 0).matches("OK 0").count(),
        8
    );
}

/// Found by a review: the index of a shard was filled to its last word, and searched for ever.
#[test]
fn the_largest_request_is_answered_by_the_smallest_table_and_the_cap_is_kept_again_soon() {
    const CHECKS: usize = 1024 * 8;
    let table = Table::new(10).hashed_by(Random::new(seed::seed()).hasher());
    let names: Vec<[u8; 8]> = (0..CHECKS + 2 * CHECKS).map(|n| n.to_le_bytes()).collect();
    let terms = Terms { limit: 2, window_ms: 3_600_000, algorithm: Algorithm::SlidingWindow, burst: 2 };
    let check = |name| Check::local(Key::new(Space::new("d", "k"), &terms, name), terms);
    let groups = [Group::default()];
    let decide = |checks: &[Check<'_>]| {
        Case { table: &table, checks, groups: &groups, is_shadow: false, now_ms: START_MS, views: &StoreViews::ALONE }
            .decide()
    };
    let checks: Vec<Check<'_>> = names[..CHECKS].iter().map(|name| check(name)).collect();
    assert!(!decide(&checks).is_over);
    assert!(table.stats().keys < CHECKS / 4, "{:?}", table.stats());
    let again = decide(&checks);
    let counted = again.verdicts.iter().filter(|verdict| verdict.remaining == 0).count();
    assert!(counted > 1000 && !again.is_over, "those that have room were counted before: {counted}");
    for name in &names[CHECKS..] {
        decide(&[check(name)]);
    }
    assert!(table.stats().keys <= 10, "{:?}", table.stats());
}

#[test]
fn a_slot_takes_two_cache_lines() {
    assert_eq!(std::mem::size_of::<crate::engine::table::Slot>(), 128);
}
