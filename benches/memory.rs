//! What a key costs in memory: resident bytes per key, for a million and ten million keys and for short and long windows.
//!
//! `cargo bench --bench memory`. Each case runs in a process of its own, because freed memory is not given back.

use std::process::Command;

use tidegate::engine::abroad::Counts;
use tidegate::engine::decide::{Check, Consult, Group, Reach, Store, decide};
use tidegate::engine::key::{IdentifierBuffer, Key};
use tidegate::engine::table::Table;
use tidegate::rules::limit::{Space, Terms};
use tidegate::rules::policy::{Algorithm, Word};
use tidegate::rules::tree::Identifier;

const NOW_MS: u64 = 1_800_000_000_000;
/// Keys that wait to be told at once: those of one flush.
const FLUSH_KEYS: usize = 10_000;
const CASE: &str = "TIDEGATE_MEMORY_CASE";

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or_default() * 1024
}

/// Who else counts a table's keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum With {
    Nobody,
    Region,
    /// One key in ten is counted by other regions, too.
    Regions,
}

fn measure(keys: usize, window_ms: u64, algorithm: Algorithm, with: With) {
    let terms = Terms { limit: 100, window_ms, algorithm, burst: 100 };
    let table = match with {
        With::Nobody => Table::new(keys),
        With::Region => Table::shared(keys),
        With::Regions => Table::global(keys, 3),
    };
    let reach = if with == With::Nobody { Reach::Process } else { Reach::Region { slack_permille: 100 } };
    let before = resident_bytes();
    for n in 0..keys {
        let mut buffer = IdentifierBuffer::default();
        buffer.push(&format!("{n:032x}"));
        let range = buffer.finish();
        let key = Key::new(Space::new("d", "k"), &terms, buffer.get(range));
        let check = Check { reach, ..Check::local(key, terms) };
        decide(&table, &[check], &[Group::default()], false, NOW_MS, &Consult::ALONE);
        if with == With::Regions && n % 10 == 0 {
            let hash = table.hash(&key);
            let mut shard = table.lock(table.shard_of(hash));
            let slot = shard.find(&key, hash);
            if let Some((slot, Some(shared))) = slot.map(|slot| shard.both(slot)) {
                let sequence = slot.counter.sequence();
                let others = Counts { hits: 5, refunds: 0 };
                shared.abroad_mut(sequence).import(sequence, sequence, others, Counts::default());
            }
        }
        // As a flush does, every 50 ms.
        if n % FLUSH_KEYS == 0 {
            while table.grown(Store::Origin).all.pop().is_some() {}
        }
    }
    let held = table.stats().keys;
    let bytes = (resident_bytes() - before) as f64 / held as f64;
    let with = match with {
        With::Nobody => "of this process",
        With::Region => "shared in a region",
        With::Regions => "shared by regions",
    };
    let window_s = window_ms / 1000;
    println!(
        "{held:>9} keys of 32 bytes, window {window_s:>6} s, {algorithm:<14}, {with:<20}: {bytes:.0} bytes per key"
    );
}

fn main() {
    let cases: &[(usize, u64, &str, With)] = &[
        (1_000_000, 1000, "sliding_window", With::Nobody),
        (1_000_000, 86_400_000, "sliding_window", With::Nobody),
        (10_000_000, 86_400_000, "sliding_window", With::Nobody),
        (1_000_000, 86_400_000, "sliding_window", With::Region),
        (10_000_000, 86_400_000, "sliding_window", With::Region),
        (1_000_000, 86_400_000, "sliding_window", With::Regions),
        (10_000_000, 86_400_000, "sliding_window", With::Regions),
        (1_000_000, 86_400_000, "gcra", With::Nobody),
        (1_000_000, 86_400_000, "exact_window", With::Nobody),
    ];
    if let Some(case) = std::env::var(CASE).ok().and_then(|case| case.parse::<usize>().ok()) {
        let (keys, window_ms, algorithm, with) = cases[case];
        measure(keys, window_ms, Algorithm::from_word(algorithm).unwrap_or(Algorithm::SlidingWindow), with);
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    for case in 0..cases.len() {
        let ended = Command::new(&program).env(CASE, case.to_string()).status();
        assert!(ended.is_ok_and(|status| status.success()), "case {case} failed");
    }
}
