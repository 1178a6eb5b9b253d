//! The counters of a rule whose metrics name values of the request, because its operator asked for it.
//!
//! The values are looked up in a map. It is replaced whenever it grows, so that reading takes no lock, and it stops growing
//! at [`SERIES_PER_RULE_MAX`].

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::observe::hits::HitCounters;
use crate::observe::labels::{Labels, clipped};
use crate::request::Descriptor;
use crate::rules::limit::RulePathStep;

/// How many values of a rule get a series of their own. All others share one.
pub(crate) const SERIES_PER_RULE_MAX: usize = 1000;
/// Stands for these other values in labels.
const OTHER: &str = "other";

type SeriesOfValues = HashMap<Box<[u8]>, Arc<(Labels, HitCounters)>, ahash::RandomState>;

/// The series of a rule whose metrics name values of the request.
#[derive(Debug)]
pub(crate) struct ByValue {
    domain: Arc<str>,
    rule_path: Box<[RulePathStep]>,
    series: ArcSwap<SeriesOfValues>,
    /// Locked to add a series. Readers never wait for it.
    adding: Mutex<()>,
    /// The series of all values that have none of their own.
    other: Arc<(Labels, HitCounters)>,
}

impl ByValue {
    pub(crate) fn new(domain: &Arc<str>, rule_path: &[RulePathStep]) -> ByValue {
        let other: Vec<Arc<str>> = rule_path
            .iter()
            .map(|step| if step.takes_value { format!("{}_{OTHER}", step.key).into() } else { step.written.clone() })
            .collect();
        ByValue {
            domain: domain.clone(),
            rule_path: rule_path.into(),
            series: ArcSwap::default(),
            adding: Mutex::new(()),
            other: Arc::new((Labels::new(domain, &other), HitCounters::default())),
        }
    }

    pub(crate) fn rule_path(&self) -> &[RulePathStep] {
        &self.rule_path
    }

    /// Visits every series.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Labels, &HitCounters)) {
        self.series.load().values().chain([&self.other]).for_each(|series| visit(&series.0, &series.1));
    }

    /// The counters for the values of a descriptor.
    pub(crate) fn find(&self, descriptor: &Descriptor<'_>) -> Arc<(Labels, HitCounters)> {
        let key = self.key(descriptor);
        let series = self.series.load();
        if let Some(found) = series.get(&*key) {
            return found.clone();
        }
        if series.len() >= SERIES_PER_RULE_MAX { self.other.clone() } else { self.add(&key, descriptor) }
    }

    #[cold]
    fn add(&self, key: &[u8], descriptor: &Descriptor<'_>) -> Arc<(Labels, HitCounters)> {
        let _adding = self.adding.lock();
        let current = self.series.load();
        if let Some(found) = current.get(key) {
            return found.clone();
        }
        if current.len() >= SERIES_PER_RULE_MAX {
            return self.other.clone();
        }
        let mut grown = SeriesOfValues::clone(&current);
        let added = Arc::new((self.labels(descriptor), HitCounters::default()));
        grown.insert(key.into(), added.clone());
        self.series.store(Arc::new(grown));
        added
    }

    /// The values that the labels name, each with its length before it.
    fn key(&self, descriptor: &Descriptor<'_>) -> SmallVec<[u8; 64]> {
        let mut key = SmallVec::new();
        for (step, entry) in self.rule_path.iter().zip(&descriptor.entries) {
            if step.takes_value {
                let value = clipped(entry.value);
                key.push(value.len() as u8);
                key.extend_from_slice(value.as_bytes());
            }
        }
        key
    }

    fn labels(&self, descriptor: &Descriptor<'_>) -> Labels {
        let name = |(step, value): (&RulePathStep, &str)| match clipped(value) {
            value if step.takes_value && !value.is_empty() => format!("{}_{value}", step.key).into(),
            _ if step.takes_value => step.key.clone(),
            _ => step.written.clone(),
        };
        let values = descriptor.entries.iter().map(|entry| entry.value);
        let steps: Vec<Arc<str>> = self.rule_path.iter().zip(values).map(name).collect();
        Labels::new(&self.domain, &steps)
    }
}
