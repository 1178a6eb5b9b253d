//! The cost of a key in memory: resident bytes per key, for a million and ten million keys, short and long windows and values,
//! and every algorithm. Beside it, how many bytes the cap counts for a key.
//!
//! `cargo bench --bench memory`. Each case runs in a process of its own, because freed memory is not given back.

use std::fmt;
use std::process::Command;

use tidegate::clock::Now;
use tidegate::engine::decide::{self, ChargeMode, Check, Group, Reach, Store, StoreViews};
use tidegate::engine::key::{IdentifierBuffer, Key};
use tidegate::engine::table::Table;
use tidegate::engine::table::foreign::Counts;
use tidegate::engine::table::foreign_ledger::ForeignSum;
use tidegate::rules::limit::{Space, Terms};
use tidegate::rules::policy::{Algorithm, Word};
use tidegate::rules::tree::Identifier;

const NOW_MS: u64 = 1_800_000_000_000;
/// How many keys wait to be told at the same time: those of one flush.
const FLUSH_KEYS: usize = 10_000;
const MILLION: usize = 1_000_000;
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

/// A kind of key to measure.
#[derive(Clone, Copy)]
struct MemoryCase {
    keys: usize,
    window_ms: u64,
    algorithm: &'static str,
    with: With,
    value_bytes: usize,
    /// In how many sixteenths of the window each key is used.
    parts: u64,
    /// How many hits each use has.
    hits: u64,
}

impl MemoryCase {
    const fn new(keys: usize, algorithm: &'static str, with: With) -> MemoryCase {
        MemoryCase { keys, window_ms: 86_400_000, algorithm, with, value_bytes: 32, parts: 1, hits: 1 }
    }

    fn terms(&self) -> Terms {
        let algorithm = Algorithm::from_word(self.algorithm).unwrap_or(Algorithm::SlidingWindow);
        Terms { limit: 100_000, window_ms: self.window_ms, algorithm, burst: 100_000 }
    }

    fn measure(&self) {
        let (terms, keys) = (self.terms(), self.keys);
        let table = match self.with {
            With::Nobody => Table::new(keys),
            With::Region => Table::shared(keys),
            With::Regions => Table::global(keys, 3),
        };
        let before = resident_bytes();
        for part in 0..self.parts {
            let now_ms = NOW_MS + part * self.window_ms / 16;
            for n in 0..keys {
                let mut buffer = IdentifierBuffer::default();
                buffer.push(&format!("{n:0width$x}", width = self.value_bytes));
                let range = buffer.finish();
                let key = Key::new(Space::new("d", "k"), &terms, buffer.get(range));
                self.use_key(&table, key, now_ms);
                if self.with == With::Regions && n % 10 == 0 {
                    count_abroad(&table, &key, &terms, now_ms);
                }
                // Does what a flush does every 50 ms.
                if n % FLUSH_KEYS == 0 {
                    let now = Now { wall_ms: now_ms, mono_us: 0 };
                    table.ledger(Store::Origin).unsent(now).for_each(drop);
                }
            }
        }
        let stats = table.stats();
        let [bytes, told] = [resident_bytes() - before, stats.bytes].map(|bytes| bytes as f64 / stats.keys as f64);
        println!("{:>9} keys {self}: {bytes:.0} bytes per key, taken for {told:.0}", stats.keys);
    }

    fn use_key(&self, table: &Table, key: Key<'_>, now_ms: u64) {
        let reach = if self.with == With::Nobody { Reach::Process } else { Reach::Region { slack_permille: 100 } };
        // Always charged, so that no store has to be asked.
        let charging = ChargeMode::Always;
        let check = Check { reach, charging, hits: self.hits, ..Check::local(key, self.terms()) };
        let (checks, groups) = ([check], [Group::default()]);
        let case = decide::Case {
            table,
            checks: &checks,
            groups: &groups,
            is_shadow: false,
            now_ms,
            views: &StoreViews::ALONE,
        };
        case.decide();
    }
}

impl fmt::Display for MemoryCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = match self.with {
            With::Nobody => "of this process",
            With::Region => "shared in a region",
            With::Regions => "shared by regions",
        };
        let MemoryCase { value_bytes, window_ms, algorithm, parts, hits, .. } = self;
        let window_s = window_ms / 1000;
        write!(
            f,
            "of {value_bytes:>3} bytes, window {window_s:>6} s, {algorithm:<14}, {parts:>2} x {hits:>3} hits, {with:<18}"
        )
    }
}

fn count_abroad(table: &Table, key: &Key<'_>, terms: &Terms, now_ms: u64) {
    let others = Counts { hits: 5, refunds: 0 };
    let sum = ForeignSum { sequence: now_ms / key.window_ms, others, row: Counts::default(), told: Counts::default() };
    table.foreign_ledger().import(key, terms, &sum, now_ms);
}

fn main() {
    let exact = "exact_window";
    let long = |case: MemoryCase, value_bytes: usize| MemoryCase { value_bytes, ..case };
    let often = |case: MemoryCase| MemoryCase { parts: 17, hits: 300, ..case };
    let cases = [
        MemoryCase { window_ms: 1000, ..MemoryCase::new(MILLION, "sliding_window", With::Nobody) },
        MemoryCase::new(MILLION, "sliding_window", With::Nobody),
        MemoryCase::new(10 * MILLION, "sliding_window", With::Nobody),
        MemoryCase::new(MILLION, "sliding_window", With::Region),
        MemoryCase::new(10 * MILLION, "sliding_window", With::Region),
        MemoryCase::new(MILLION, "sliding_window", With::Regions),
        MemoryCase::new(10 * MILLION, "sliding_window", With::Regions),
        MemoryCase::new(MILLION, "gcra", With::Nobody),
        MemoryCase::new(MILLION, exact, With::Nobody),
        MemoryCase::new(MILLION, exact, With::Region),
        often(MemoryCase::new(MILLION, exact, With::Nobody)),
        often(MemoryCase::new(MILLION, exact, With::Region)),
        long(MemoryCase::new(MILLION, "sliding_window", With::Nobody), 120),
        long(MemoryCase::new(MILLION, "sliding_window", With::Nobody), 240),
        long(MemoryCase::new(MILLION, "sliding_window", With::Region), 120),
        long(MemoryCase::new(MILLION, "sliding_window", With::Region), 240),
    ];
    if let Some(case) = std::env::var(CASE).ok().and_then(|case| case.parse::<usize>().ok()) {
        cases[case].measure();
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    for case in 0..cases.len() {
        let ended = Command::new(&program).env(CASE, case.to_string()).status();
        assert!(ended.is_ok_and(|status| status.success()), "case {case} failed");
    }
}
