//! The rules in force, and those that were and may still be seen.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

use crate::observe::hits::HitMetrics;
use crate::rules::Ruleset;

/// Rules, and the counters that belong to them.
#[derive(Debug)]
pub(crate) struct InForce {
    pub ruleset: Ruleset,
    /// What its limits have admitted and denied.
    pub hits: HitMetrics,
}

/// A look at the rules in force, which it keeps from being dropped.
pub(crate) type RulesLook = Guard<Option<Arc<InForce>>>;

/// The rules in force. A request takes one look and keeps to what it saw.
#[derive(Debug, Default)]
pub(crate) struct RulesInForce {
    current: ArcSwapOption<InForce>,
    /// Rules that were replaced and may still be seen by a request. Dropped here, because a large ruleset takes
    /// milliseconds to drop, which no request should pay.
    retired: Mutex<Vec<Arc<InForce>>>,
}

impl RulesInForce {
    /// For a request: without a count of references that all threads would write.
    #[inline]
    pub(crate) fn look(&self) -> RulesLook {
        self.current.load()
    }

    /// For those who look rather than ask.
    pub(crate) fn get(&self) -> Option<Arc<InForce>> {
        self.current.load_full()
    }

    /// Puts rules into force, then does what has to follow before other rules may replace them.
    pub(crate) fn install(&self, ruleset: Ruleset, then: impl FnOnce(&Ruleset)) {
        let mut retired = self.retired.lock();
        let before = self.get();
        let hits = match &before {
            Some(before) => HitMetrics::new(&ruleset, &before.hits),
            None => HitMetrics::new(&ruleset, &HitMetrics::default()),
        };
        let in_force = Arc::new(InForce { ruleset, hits });
        self.current.store(Some(in_force.clone()));
        then(&in_force.ruleset);
        retired.extend(before);
        retired.retain(is_seen_by_others);
    }

    /// Drops rules that no request sees any more.
    pub(crate) fn tidy(&self) {
        self.retired.lock().retain(is_seen_by_others);
    }
}

fn is_seen_by_others(rules: &Arc<InForce>) -> bool {
    Arc::strong_count(rules) > 1
}
