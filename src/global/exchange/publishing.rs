//! The way out: which rows are sent, and what becomes of them.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::clock::Now;
use crate::engine::table::SlotRef;
use crate::engine::table::cell::COUNT_MAX;
use crate::engine::table::foreign::Counts;
use crate::engine::table::foreign_ledger::{PublishableCell, PublishableKey};
use crate::global::exchange::{Exchange, ExchangeState};
use crate::global::mentions::Mention;
use crate::global::names::Names;
use crate::global::publish::{CHUNK_ROWS, Publication};
use crate::global::row::{CellName, OwnRow};
use crate::global::spoken_cells::SpokenRow;
use crate::global::voice::Role;

/// Rows of one turn; what is left is for the next. While the store does not answer, one statement is enough to try.
const TURN_ROWS: usize = 64 * CHUNK_ROWS;
/// How often a store is asked whether it answers when there is nothing to publish.
const PING_US: u64 = 10_000_000;
/// How long a row that the server refused is left alone.
const REFUSED_US: u64 = 10_000_000;

impl ExchangeState {
    /// Whether a row may be sent now: the server does not refuse it, and this clock is not ahead by more than a window:
    /// others would count it when that window comes.
    fn may_send(&self, cell: &CellName, now: Now) -> bool {
        let is_ahead = |server_ms: u64| cell.sequence > server_ms / cell.duration_ms + 1;
        !self.followed.server_ms(now).is_some_and(is_ahead) && !self.refused.contains_key(cell)
    }
}

impl Exchange {
    /// The rows that others should know of now. A turn with rows ends with [`Exchange::published`], one without with
    /// [`Exchange::published_nothing`].
    pub fn collect(&self, now: Now) -> Publication {
        let names = self.names.read().clone();
        let mut state = self.state.lock();
        if state.role() == Role::Following {
            // The speaker does that, when it is told what to publish.
            return Publication::new(Vec::new());
        }
        let is_over = |until_us: u64| now.mono_us >= until_us;
        let again: Vec<SlotRef> =
            state.refused.values().filter(|(until_us, _)| is_over(*until_us)).filter_map(|(_, at)| *at).collect();
        state.refused.retain(|_, (until_us, _)| !is_over(*until_us));
        again.into_iter().for_each(|at| self.ledger().note(at));
        self.ledger().sweep_noted();
        let mut rows = Vec::new();
        let rows_max = if state.publishing.is_open() { CHUNK_ROWS } else { TURN_ROWS };
        let mut keys = self.ledger().publishable(now.wall_ms);
        while rows.len() < rows_max
            && let Some(key) = keys.next()
        {
            self.add_rows(&key, &names, &state, now, &mut rows);
        }
        if let Some(mut spoken) = state.voice.as_mut().map(|voice| std::mem::take(&mut voice.spoken)) {
            let is_meant = |cell: &CellName| state.may_send(cell, now);
            for SpokenRow { row, slots } in spoken.rows(self.regions(), rows_max.saturating_sub(rows.len()), is_meant) {
                rows.push((row.clone(), None));
                rows.extend(slots.into_iter().map(|at| (row.clone(), Some(at))));
            }
            if let Some(voice) = &mut state.voice {
                voice.spoken = spoken;
            }
        }
        Publication::new(rows)
    }

    /// Whether to ask the store for a sign of life when nothing is to be published: it has not answered for a while, or
    /// has been given up.
    pub fn wants_ping(&self, now: Now) -> bool {
        let state = self.state.lock();
        if state.role() == Role::Following {
            return false;
        }
        let is_silent = state.published_us.is_none_or(|at_us| now.mono_us.saturating_sub(at_us) >= PING_US);
        is_silent || state.publishing.is_open()
    }

    /// Ends a turn without rows. `does_answer`: whether the store has answered, `None` if it was not asked.
    pub fn published_nothing(&self, does_answer: Option<bool>, now: Now) {
        let mut state = self.state.lock();
        match does_answer {
            Some(is_success) => {
                state.publishing.ended(is_success, now.mono_us);
                if is_success {
                    state.published_us = Some(now.mono_us);
                }
            }
            None => state.publishing.passed(now.mono_us),
        }
    }

    /// Adds the rows of a key, but for those that the server refuses.
    fn add_rows(
        &self,
        publishable: &PublishableKey,
        names: &Names,
        state: &ExchangeState,
        now: Now,
        rows: &mut Vec<(OwnRow, Option<SlotRef>)>,
    ) {
        for Mention { cell, counts, .. } in self.mentions_of(publishable, names, state, now) {
            rows.push((OwnRow { cell, counts }, Some(publishable.at)));
        }
    }

    /// What others should know of a key, but for what the server refuses.
    pub(super) fn mentions_of(
        &self,
        publishable: &PublishableKey,
        names: &Names,
        state: &ExchangeState,
        now: Now,
    ) -> SmallVec<[Mention; 2]> {
        let PublishableKey { key: owned, cells, .. } = publishable;
        let key = owned.as_key();
        let Some(named) = names.of_space(key.space) else { return SmallVec::new() };
        let is_sensitive = named.is_sensitive || owned.is_sensitive;
        let mention = |publishable: &PublishableCell| {
            let PublishableCell { sequence, counts, standing } = *publishable;
            let cell = CellName {
                workspace: named.name.workspace.clone(),
                namespace: named.name.namespace.clone(),
                identifier: self.identifier(&key, is_sensitive),
                duration_ms: key.window_ms,
                sequence,
            };
            let hits = counts.hits.min(COUNT_MAX);
            state.may_send(&cell, now).then(|| Mention {
                cell,
                key: self.options.key_names.origin_key(&key, is_sensitive),
                limit: standing.limit,
                is_contested: standing.is_contested,
                counts: Counts { hits, refunds: counts.refunds.min(hits) },
                told: standing.told,
            })
        };
        cells.iter().filter_map(mention).collect()
    }

    /// Ends a turn: what the server has is not sent again, what it has not is.
    pub fn published(&self, sending: &Publication, now: Now) {
        for at in &sending.done {
            let row = sending.row(*at);
            for at in sending.slots(*at) {
                self.ledger().published(*at, row.cell.sequence, row.counts);
            }
        }
        let mut state = self.state.lock();
        if let Some(voice) = &mut state.voice {
            for at in &sending.done {
                let OwnRow { cell, counts } = sending.row(*at);
                voice.spoken.published(cell, *counts);
            }
        }
        for at in &sending.refused {
            let until_us = now.mono_us + REFUSED_US;
            state.refused.insert(sending.row(*at).cell.clone(), (until_us, sending.slots(*at).first().copied()));
        }
        for at in &sending.failed {
            sending.slots(*at).iter().for_each(|at| self.ledger().note(*at));
        }
        self.counts.published_rows.fetch_add(sending.done.len() as u64, Ordering::Relaxed);
        self.counts.refused_rows.fetch_add(sending.refused.len() as u64, Ordering::Relaxed);
        state.publishing.ended(sending.failed.is_empty(), now.mono_us);
        if !sending.done.is_empty() {
            state.published_us = Some(now.mono_us);
        }
    }
}
