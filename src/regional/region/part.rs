//! A key between the engine's words and those of a call.

use smallvec::SmallVec;

use crate::engine::table::ledger::KeyTotals;
use crate::engine::table::regional_part::{OriginCell, Totals};
use crate::regional::call::{Heard, Measure, OriginKey, Part, Told};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// How long a cell outlives its window at the origin: clocks differ.
const GRACE_MS_MAX: u64 = 60_000;

/// A key as a call names it.
pub fn part(key: OriginKey, terms: &Terms, totals: &KeyTotals, now_ms: u64) -> Part {
    let Terms { limit, window_ms, algorithm, burst } = *terms;
    let measure = match algorithm {
        Algorithm::SlidingWindow => Measure::Sliding { left_ms: window_ms - totals.now_ms % window_ms },
        Algorithm::FixedWindow | Algorithm::ExactWindow => Measure::Sum,
        Algorithm::Gcra => Measure::Gcra { limit, burst },
    };
    let grace_ms = window_ms.min(GRACE_MS_MAX);
    let told = |totals: &Totals| Told {
        sequence: totals.sequence,
        is_seated: totals.is_seated,
        own: totals.own,
        acked: totals.acked,
        epoch: totals.epoch,
        floor: totals.floor,
        floor_rest: totals.floor_rest,
        asked: totals.asked,
        asked_acked: totals.asked_acked,
        refunds_floor: totals.refunds_floor,
        ttl_ms: match algorithm {
            Algorithm::Gcra => totals.level,
            _ => totals.ends_at_ms.saturating_sub(now_ms).saturating_add(grace_ms),
        },
        row: totals.row,
        foreign: totals.foreign,
    };
    Part { key, window_ms, measure, cells: totals.cells.iter().map(told).collect() }
}

pub fn origin_cells(sequences: &[u64], heard: &[Heard]) -> SmallVec<[OriginCell; 2]> {
    let cell = |(sequence, heard): (&u64, &Heard)| OriginCell {
        sequence: *sequence,
        epoch: heard.epoch,
        sum: heard.sum,
        field: heard.field,
        asked: heard.asked,
        refunds: heard.refunds,
        holders: heard.holders,
        level_ahead_ms: heard.level.ahead_ms,
        level_whole: heard.level.whole,
        level_rest: heard.level.rest,
    };
    sequences.iter().zip(heard).map(cell).collect()
}
