//! `--processes N`: the fleet that rules are for, to say who would decide there. Nothing needs to run.

use std::num::NonZeroU32;

use clap::Args;

use crate::engine::reach::{Layers, Store};
use crate::engine::usual_decider::UsualDecider;
use crate::rules::limit::{Limit, Rule};

#[derive(Args, Clone, Copy, Debug)]
pub struct FleetFlags {
    /// Say who decides each limit if so many processes of a region share their counts: memory, or Redis for every request
    #[arg(long, value_name = "N")]
    pub processes: Option<NonZeroU32>,
}

/// Processes that share their counts through a Redis, whether one is configured here or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedFleet {
    layers: Layers,
    processes: u32,
}

impl PlannedFleet {
    /// `None` unless the number of processes is given. `slack_permille` is that of limits that do not choose their own.
    pub(crate) fn new(flags: FleetFlags, layers: Layers, slack_permille: u16) -> Option<PlannedFleet> {
        let owner = layers.owner.or((layers.place.regions == 1).then_some(Store::Origin));
        let layers = Layers { is_regional: true, owner, slack_permille, ..layers };
        Some(PlannedFleet { layers, processes: flags.processes?.get() })
    }

    pub(crate) fn decider(&self, rule: &Rule, limit: &Limit) -> UsualDecider {
        UsualDecider::of_limit(rule, limit, &self.layers, self.processes)
    }
}
