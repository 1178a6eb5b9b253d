//! Requests that are chosen one by one, and what a fleet makes of them.

use super::exact_count::{KeyOutcome, outcomes};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;
use crate::simulate::faults::{Fault, Network};
use crate::simulate::oracle::RequestedHits;
use crate::simulate::process::KeyHits;
use crate::simulate::world::{START_MS, Setup, World};

/// Hits that arrive at a process; negative ones are refunds of what it has been admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) at_us: u64,
    pub(super) process: usize,
    pub(super) hits: i64,
}

/// Processes, and one key that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fleet {
    pub(super) processes: usize,
    pub(super) terms: Terms,
    pub(super) slack_permille: u16,
    pub(super) round_trip_ms: u64,
}

/// What a fleet made of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Played {
    pub(super) outcome: KeyOutcome,
    /// Requests that memory decided because the origin had not answered in time.
    pub(super) unanswered: u64,
    /// Hits that were forgotten by processes that stopped.
    pub(super) forgotten: u64,
}

impl Fleet {
    /// What each of so many processes may admit on its own.
    pub(super) fn credit(&self, live: usize) -> u64 {
        let slack = u64::from(self.terms.capacity()) * u64::from(self.slack_permille) / 1000;
        slack / live.max(1) as u64
    }

    pub(super) fn own_credit(&self) -> u64 {
        self.credit(self.processes)
    }

    /// The most that may ever count: the limit, and a credit of every process.
    pub(super) fn bound(&self) -> u64 {
        u64::from(self.terms.capacity()) + self.processes as u64 * self.own_credit()
    }

    /// The most that may ever count while there are from one to so many processes.
    pub(super) fn bound_up_to(&self, processes: usize) -> u64 {
        let credits = (1..=processes).map(|live| live as u64 * self.credit(live));
        u64::from(self.terms.capacity()) + credits.max().unwrap_or(0)
    }

    fn world(&self, seed: u64) -> World {
        let Terms { limit, window_ms, algorithm, burst } = self.terms;
        let algorithm = match algorithm {
            Algorithm::SlidingWindow => "sliding_window".to_owned(),
            Algorithm::FixedWindow => "fixed_window".to_owned(),
            Algorithm::ExactWindow => "exact_window".to_owned(),
            Algorithm::Gcra => format!("gcra, burst: {burst}"),
        };
        let limit = format!("{{requests_per_unit: {limit}, window: {window_ms}ms, algorithm: {algorithm}}}");
        let mut setup = Setup::new(seed, self.processes, &limit);
        setup.slack_permille = self.slack_permille;
        let one_way_us = self.round_trip_ms * 500;
        setup.network = Network { delay_us: (one_way_us * 9 / 10, one_way_us * 11 / 10), ..Network::QUIET };
        setup.deadline_us = 10_000 * self.round_trip_ms;
        World::new(setup)
    }

    /// Has requests arrive, and processes come and go.
    pub(super) fn play(&self, seed: u64, arrivals: &mut [Arrival], changes: &[(u64, Fault)]) -> Played {
        arrivals.sort_by_key(|arrival| arrival.at_us);
        let mut world = self.world(seed);
        for (at_us, fault) in changes {
            world.fault_at(*at_us, *fault);
        }
        for Arrival { at_us, process, hits } in arrivals.iter().copied() {
            if hits >= 0 {
                world.request_at(at_us, process, KeyHits { key: 0, hits });
                continue;
            }
            world.run_until(at_us - 1);
            let hits = hits.max(-(self.own_hits(&world, process, at_us) as i64));
            if hits < 0 {
                world.request_at(at_us, process, KeyHits { key: 0, hits });
                world.run_until(at_us);
            }
        }
        let end_us = arrivals.last().map_or(0, |arrival| arrival.at_us);
        world.run_until(end_us + 500_000);
        let outcome = outcomes(&world.oracle, self.terms).remove(&0).unwrap_or_default();
        Played { outcome, unanswered: world.oracle.unanswered, forgotten: world.oracle.died_with }
    }

    /// Hits of a process that are certainly still there: given back, none is lost, whoever hears of it first.
    fn own_hits(&self, world: &World, process: usize, at_us: u64) -> u64 {
        let cell_ms = match self.terms.algorithm {
            Algorithm::ExactWindow => self.terms.window_ms / 16,
            Algorithm::SlidingWindow | Algorithm::FixedWindow => self.terms.window_ms,
            // Of a bucket what can't have drained.
            Algorithm::Gcra => self.terms.window_ms / 20,
        };
        let cell = |at_us: u64| (START_MS + at_us / 1000) / cell_ms;
        let is_there = |all: &[RequestedHits]| -> u64 {
            let own = all.iter().filter(|it| it.process == process && cell(it.at_us) == cell(at_us));
            own.map(|it| it.hits).sum()
        };
        let left = is_there(&world.oracle.admitted).saturating_sub(is_there(&world.oracle.refunds));
        if self.terms.algorithm == Algorithm::Gcra { left / 2 } else { left }
    }
}
