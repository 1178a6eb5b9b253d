//! The rules in force, and replaced rules that a request may still see.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

use crate::observe::hits::HitMetrics;
use crate::rules::Ruleset;

/// Rules, and the counters that belong to them.
#[derive(Debug)]
pub(crate) struct InForce {
    /// What requests are matched against. Never changes: new rules replace all of this.
    pub ruleset: Ruleset,
    /// What its limits have admitted and denied. Carries on the counts of the rules before.
    pub hits: HitMetrics,
}

/// A look at the rules in force, `None` before the first. Keeps them from being dropped.
pub(crate) type RulesLook = Guard<Option<Arc<InForce>>>;

/// The rules in force. A request takes one look and keeps to what it saw.
#[derive(Debug, Default)]
pub(crate) struct RulesInForce {
    current: ArcSwapOption<InForce>,
    /// Replaced rules that a request may still see. They are dropped here, because a large ruleset takes milliseconds to
    /// drop, which no request should pay.
    retired: Mutex<Vec<Arc<InForce>>>,
}

impl RulesInForce {
    /// For a request: takes no reference count, which all threads would write.
    #[inline]
    pub(crate) fn look(&self) -> RulesLook {
        self.current.load()
    }

    /// For readers other than requests, such as the admin port.
    pub(crate) fn get(&self) -> Option<Arc<InForce>> {
        self.current.load_full()
    }

    /// Puts rules into force, then calls `then` before other rules may replace them.
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
