//! The cap in bytes: what keys take is added up right, and stays within what it may be.

use super::*;
use crate::engine::decide::{Case, ChargeMode, Check, Group, Reach, StoreViews};
use crate::engine::key::{IDENTIFIER_BYTES_MAX, IdentifierBuffer, Key};
use crate::engine::table::Table;
use crate::engine::table::weight::{Capacity, KEY_BYTES, SHARED_KEY_BYTES};
use crate::rules::limit::{Space, Terms};
use crate::rules::policy::Algorithm;
use crate::rules::tree::Identifier;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {requests_per_unit: 1000, unit: hour}}
  - {key: exact, rate_limit: {requests_per_unit: 1000, unit: hour, algorithm: exact_window}}
";
const MIB: usize = 1 << 20;
/// What a shard begins with.
const PAGE_BYTES: usize = 32 * SHARED_KEY_BYTES;

fn bench(capacity: Capacity) -> Bench {
    let engine = Engine::new(capacity).hashed_by(Random::new(seed::seed()).hasher());
    Bench { engine, rules: ruleset(RULES), modes: Modes::default() }
}

/// INV-7.
#[test]
fn keys_take_no_more_than_they_may_whatever_each_takes() {
    let bench = bench(Capacity { keys: 100_000, bytes: MIB });
    let keys_max = bench.engine.table().keys_max();
    assert_eq!(keys_max, MIB / 5 * 4 / KEY_BYTES, "a fifth is left for what is beside the slots");
    for n in 0..20_000 {
        bench.decide(&[ask(&format!("k={n}"))], 0);
    }
    let light = bench.engine.stats();
    assert!(light.bytes <= MIB && light.keys + 1 >= keys_max, "{light:?}");
    let long = "x".repeat(100);
    for n in 0..20_000 {
        bench.decide(&[ask_for(&format!("exact={long}-{n}"), Hits::OfRequest(300))], 0);
        let stats = bench.engine.stats();
        assert!(stats.bytes <= MIB + PAGE_BYTES, "{stats:?}");
    }
    let (heavy, beside) = (bench.engine.stats(), bench.engine.table().bytes_beside());
    assert!(heavy.bytes > MIB - 1000 && beside > MIB / 10, "as many as there is room for: {heavy:?}, {beside}");
    assert!(heavy.keys > light.keys / 2, "and others stay: {heavy:?} after {light:?}");
}

#[test]
fn keys_that_have_become_heavier_make_room_with_the_next_sweep() {
    let bench = bench(Capacity { keys: 5000, bytes: MIB });
    let names: Vec<String> = (0..5000).map(|n| format!("exact={n}")).collect();
    names.iter().for_each(|name| drop(bench.decide(&[ask(name)], 0)));
    assert_eq!(bench.engine.stats().keys, 5000);
    // Every tenth is denied from now on.
    for (n, name) in names.iter().enumerate() {
        bench.decide(&[ask_for(name, Hits::OfRequest(if n % 10 == 0 { 999 } else { 400 }))], 0);
    }
    let grown = bench.engine.stats();
    assert!(grown.keys == 5000 && grown.bytes > 2 * MIB, "{grown:?}");
    bench.engine.expire(START_MS + 1000);
    let trimmed = bench.engine.stats();
    assert!(trimmed.bytes <= MIB && trimmed.bytes > MIB - 1000, "{trimmed:?}");
    assert_eq!(trimmed.evicted_over_limit, 0, "there were others");
    assert!(names.iter().step_by(10).all(|name| bench.decide(&[ask(name)], 1000).is_over));
}

#[test]
fn a_table_of_denied_keys_is_trimmed_all_the_same() {
    let bench = bench(Capacity { keys: 5000, bytes: MIB });
    let names: Vec<String> = (0..5000).map(|n| format!("exact={n}")).collect();
    names.iter().for_each(|name| drop(bench.decide(&[ask(name)], 0)));
    names.iter().for_each(|name| drop(bench.decide(&[ask_for(name, Hits::OfRequest(999))], 0)));
    bench.engine.expire(START_MS + 1000);
    let stats = bench.engine.stats();
    assert!(stats.bytes <= MIB && stats.evicted_over_limit == stats.evicted && stats.evicted > 0, "{stats:?}");
}

/// Hits and refunds of any size on keys of any kind, sharing their counts or not, and then time that ends them all.
#[test]
fn what_comes_to_be_beside_a_slot_goes_with_it() {
    let mut random = Random::new(seed::seed());
    for is_shared in [false, true] {
        let capacity = Capacity { keys: 100, bytes: 200_000 };
        let hasher = Random::new(random.number()).hasher();
        let (table, reach) = match is_shared {
            false => (Table::new(capacity).hashed_by(hasher), Reach::Process),
            true => (Table::shared(capacity).hashed_by(hasher), Reach::Region { slack_permille: 0 }),
        };
        let mut most = 0;
        for step in 0..30_000 {
            let algorithm = match random.below(3) {
                0 => Algorithm::SlidingWindow,
                1 => Algorithm::Gcra,
                _ => Algorithm::ExactWindow,
            };
            let terms = Terms { limit: 1000, window_ms: 10_000, algorithm, burst: 1000 };
            let mut identifier = IdentifierBuffer::default();
            let number = random.below(60);
            identifier.push(&"x".repeat([0, 60, 100, 150][number as usize % 4]));
            identifier.push(&number.to_string());
            let range = identifier.finish();
            let key = Key::new(Space::new("d", "k"), &terms, identifier.get(range));
            let charging = if random.below(5) == 0 { ChargeMode::Refund } else { ChargeMode::Always };
            let check = Check { reach, charging, hits: 1 + random.below(400), ..Check::local(key, terms) };
            let now_ms = START_MS + step * 2;
            let (checks, groups) = ([check], [Group::default()]);
            let case = Case {
                table: &table,
                checks: &checks,
                groups: &groups,
                is_shadow: false,
                now_ms,
                views: &StoreViews::ALONE,
            };
            case.decide();
            most = most.max(table.bytes_beside());
        }
        assert!(table.stats().evicted > 1000 && most > 8000, "much was beside the slots: {most}");
        table.expire(START_MS + 100_000_000);
        assert_eq!((table.stats().keys, table.bytes_beside()), (0, 0), "shared: {is_shared}");
    }
}

#[test]
fn no_identifier_takes_as_much_as_the_rest_of_its_key() {
    let bench = bench(Capacity { keys: 100, bytes: MIB });
    for length in [1, 38, 100, IDENTIFIER_BYTES_MAX - 1, IDENTIFIER_BYTES_MAX, 250, 10_000] {
        let before = bench.engine.table().bytes_beside();
        bench.decide(&[ask(&format!("k={}", "x".repeat(length)))], 0);
        let grown = bench.engine.table().bytes_beside() - before;
        assert!(grown < KEY_BYTES && (grown > 0) == (38..IDENTIFIER_BYTES_MAX).contains(&length), "{length}: {grown}");
    }
}

/// Found by a review: a flood of light keys and then one of heavy ones took the memory of both.
#[test]
fn slots_of_keys_that_are_gone_count_on() {
    let bench = bench(Capacity { keys: 100_000, bytes: MIB });
    (0..20_000).for_each(|n| drop(bench.decide(&[ask(&format!("k={n}"))], 0)));
    let full = bench.engine.stats().bytes;
    bench.engine.expire(START_MS + 100_000_000);
    let empty = bench.engine.stats();
    assert_eq!((empty.keys, empty.bytes), (0, full), "they are resident");
    for n in 0..20_000 {
        bench.decide(&[ask_for(&format!("exact={n}"), Hits::OfRequest(300))], 100_000_000);
    }
    let heavy = bench.engine.stats();
    assert!(heavy.bytes <= MIB + PAGE_BYTES && heavy.keys * 288 < MIB - full + PAGE_BYTES, "{heavy:?}");
}
