//! The reference's counters of a rule: `ratelimit_service_rate_limit_*{domain,key1,key2}`.
//!
//! A rule's counters are found by its number, without a lock and without putting a label together. They belong to the
//! labels, not to the ruleset, so that they go on where they were when rules are reloaded. A rule whose metrics name
//! values of the request has its counters in [`ByValue`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::engine::decide::Basis;
use crate::engine::reason::Reason;
use crate::engine::{Decision, LimitStatus, Status, StatusKind};
use crate::measure::stripes::Stripes;
use crate::observe::by_value::ByValue;
use crate::observe::labels::Labels;
use crate::request::{Hits, Request};
use crate::rules::limit::Rule;
use crate::rules::policy::OnOutage;
use crate::rules::{Domain, OVERRIDE_RULE_ID, Ruleset};

/// How many levels of a rule labels tell apart. Rules that differ only in deeper levels are added up.
const LABELS_MAX: usize = 2;

/// The kinds of counters that a rule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitCounter {
    Total,
    OverLimit,
    NearLimit,
    WithinLimit,
    Shadow,
    Negative,
}

impl HitCounter {
    pub const ALL: [HitCounter; 6] = [
        HitCounter::Total,
        HitCounter::OverLimit,
        HitCounter::NearLimit,
        HitCounter::WithinLimit,
        HitCounter::Shadow,
        HitCounter::Negative,
    ];
    /// The counters that hits add to. Refunds have one of their own.
    const OF_HITS: [HitCounter; 5] =
        [HitCounter::Total, HitCounter::OverLimit, HitCounter::NearLimit, HitCounter::WithinLimit, HitCounter::Shadow];

    /// The end of the metric's name, and what it means.
    pub fn name_and_help(self) -> (&'static str, &'static str) {
        match self {
            HitCounter::Total => ("total_hits", "Hits evaluated on a rule"),
            HitCounter::OverLimit => ("over_limit", "Hits that were over the limit"),
            HitCounter::NearLimit => ("near_limit", "Charged hits above the near limit ratio"),
            HitCounter::WithinLimit => ("within_limit", "Charged hits within the limit"),
            HitCounter::Shadow => ("shadow_mode", "Hits that were over the limit of a rule in shadow mode"),
            HitCounter::Negative => ("total_negative_hits", "Hits that were to be given back (is_negative_hits)"),
        }
    }
}

/// The counts of one set of labels, by [`HitCounter`].
pub type HitCounts = [u64; HitCounter::ALL.len()];

/// The counters of one set of labels.
#[derive(Debug, Default)]
pub struct HitCounters(Stripes<{ HitCounter::ALL.len() }>);

impl HitCounters {
    fn record(&self, hits: u64, status: &Status<'_>, limited: &LimitStatus<'_>, near_ratio: f32) {
        let counts = counts(hits, status, limited, near_ratio);
        for count in HitCounter::OF_HITS {
            self.0.add(count as usize, counts[count as usize]);
        }
    }

    fn record_refund(&self, hits: u64) {
        self.0.add(HitCounter::Negative as usize, hits);
    }

    fn read(&self) -> HitCounts {
        HitCounter::ALL.map(|count| self.0.sum(count as usize))
    }
}

/// What one descriptor adds, with the reference's arithmetic where its hits straddle a threshold.
fn counts(hits: u64, status: &Status<'_>, limited: &LimitStatus<'_>, near_ratio: f32) -> HitCounts {
    let verdict = &limited.verdict;
    let limit = limited.terms.capacity();
    let near = (limit as f32 * near_ratio).floor() as u64;
    let before = u64::try_from(i64::from(limit).saturating_sub(verdict.available)).unwrap_or(0);
    let limit = u64::from(limit);
    let mut counts = HitCounts::default();
    let mut set = |count: HitCounter, hits: u64| counts[count as usize] = hits;
    set(HitCounter::Total, hits);
    if verdict.is_over && !is_by_count(limited) {
        // Denied for another reason than its count.
    } else if verdict.is_over {
        let fitting = limit.saturating_sub(before);
        let over = hits.saturating_sub(fitting).max(hits.min(1));
        set(HitCounter::OverLimit, over);
        if verdict.charged > 0 {
            set(HitCounter::NearLimit, limit.saturating_sub(near.max(before)));
        }
        if status.is_shadowed {
            set(HitCounter::Shadow, over);
        }
    } else if verdict.charged > 0 {
        set(HitCounter::WithinLimit, hits);
        set(HitCounter::NearLimit, before.saturating_add(hits).saturating_sub(near.max(before)));
    }
    counts
}

/// Whether a denial is a matter of the limit. A denial by an outage or by too much load is not over the limit.
fn is_by_count(limited: &LimitStatus<'_>) -> bool {
    match limited.emergency() {
        None | Some(Reason::Outage(OnOutage::Local | OnOutage::Allow)) => true,
        Some(Reason::Overload) => false,
        // The region's part of the limit is used up, while the region's own store answers.
        Some(_) => limited.is_cut_off && !matches!(limited.verdict.basis, Basis::Without(..)),
    }
}

/// Where a rule's hits are counted.
#[derive(Debug)]
enum OfRule {
    Fixed(Arc<HitCounters>),
    ByValue(Arc<ByValue>),
}

/// Where the hits of a domain's rules are counted.
#[derive(Debug)]
struct OfDomain {
    /// Indexed by the rule's number.
    rules: Vec<OfRule>,
    /// Limits that requests bring along and that no rule matches.
    overrides: Arc<HitCounters>,
}

/// The counters of a ruleset.
#[derive(Debug, Default)]
pub struct HitMetrics {
    /// Indexed by the domain's number.
    domains: Vec<OfDomain>,
    /// Counters of rules whose labels name no values. Rules with equal labels share them.
    fixed: HashMap<Labels, Arc<HitCounters>>,
    /// By the names of the domain and the id of the rule.
    by_value: HashMap<(Arc<str>, Arc<str>), Arc<ByValue>>,
}

impl HitMetrics {
    /// The counters of a ruleset. They carry on those of the ruleset before; counters that no rule uses any more are dropped.
    pub fn new(ruleset: &Ruleset, before: &HitMetrics) -> HitMetrics {
        let mut metrics = HitMetrics::default();
        for domain in ruleset.domains() {
            let rules = domain.rules().map(|rule| metrics.of_rule(domain, rule, before)).collect();
            let overrides = metrics.fixed(Labels::new(&domain.name, &[OVERRIDE_RULE_ID.into()]), before);
            metrics.domains.push(OfDomain { rules, overrides });
        }
        metrics
    }

    fn of_rule(&mut self, domain: &Domain, rule: &Rule, before: &HitMetrics) -> OfRule {
        let rule_path = &rule.rule_path[..rule.rule_path.len().min(LABELS_MAX)];
        if !rule_path.iter().any(|step| step.takes_value) {
            let steps: Vec<Arc<str>> = rule_path.iter().map(|step| step.written.clone()).collect();
            return OfRule::Fixed(self.fixed(Labels::new(&domain.name, &steps), before));
        }
        let name = (domain.name.clone(), rule.id.clone());
        let known = before.by_value.get(&name).filter(|known| known.rule_path() == rule_path);
        let series = known.cloned().unwrap_or_else(|| Arc::new(ByValue::new(&domain.name, rule_path)));
        self.by_value.insert(name, series.clone());
        OfRule::ByValue(series)
    }

    fn fixed(&mut self, labels: Labels, before: &HitMetrics) -> Arc<HitCounters> {
        let known = || before.fixed.get(&labels).cloned().unwrap_or_default();
        match self.fixed.get(&labels) {
            Some(counters) => counters.clone(),
            None => {
                let counters = known();
                self.fixed.insert(labels, counters.clone());
                counters
            }
        }
    }

    /// Counts a decision. Refunds are counted apart from hits; descriptors without a limit are not counted here.
    pub fn record(&self, request: &Request<'_>, decision: &Decision<'_>, near_ratio: f32) {
        let Some(of_domain) = decision.domain.and_then(|domain| self.domains.get(domain.number as usize)) else {
            return;
        };
        for (descriptor, status) in request.descriptors().iter().zip(&decision.statuses) {
            let StatusKind::Limited(limited) = &status.kind else { continue };
            let record = |counters: &HitCounters| match descriptor.hits {
                Hits::OfRequest(hits) | Hits::Own(hits) => counters.record(hits, status, limited, near_ratio),
                Hits::Refund(hits) => counters.record_refund(hits),
            };
            match status.rule.map(|rule| of_domain.rules.get(rule.number as usize)) {
                None => record(&of_domain.overrides),
                Some(Some(OfRule::Fixed(counters))) => record(counters),
                Some(Some(OfRule::ByValue(series))) => record(&series.find(descriptor).1),
                // A rule of another ruleset: its decision is not for these counters.
                Some(None) => {}
            }
        }
    }

    /// Every set of labels that has hits or refunds, and its counts.
    pub fn read(&self) -> BTreeMap<Labels, HitCounts> {
        let mut read: BTreeMap<Labels, HitCounts> = BTreeMap::new();
        let mut add = |labels: &Labels, counters: &HitCounters| {
            let counts = counters.read();
            if counts[HitCounter::Total as usize] > 0 || counts[HitCounter::Negative as usize] > 0 {
                let sums = read.entry(labels.clone()).or_default();
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
            }
        };
        self.fixed.iter().for_each(|(labels, counters)| add(labels, counters));
        for series in self.by_value.values() {
            series.for_each(&mut add);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, Modes};
    use crate::observe::by_value::SERIES_PER_RULE_MAX;
    use crate::request::{Bounds, Descriptor, DescriptorEntry};
    use crate::rules::{Options, RuleText};

    fn ruleset(text: &str) -> Ruleset {
        let source = RuleText { name: "rules.yaml".into(), text: text.to_owned() };
        Ruleset::load(&[source], &Options::default()).ruleset.unwrap()
    }

    fn descriptor<'a>(pairs: &[(&'a str, &'a str)], hits: Hits) -> Descriptor<'a> {
        let entries = pairs.iter().map(|(key, value)| DescriptorEntry { key, value }).collect();
        Descriptor { entries, hits, limit: None }
    }

    struct MeteredRule {
        engine: Engine,
        ruleset: Ruleset,
        metrics: HitMetrics,
    }

    impl MeteredRule {
        fn new(text: &str) -> MeteredRule {
            let ruleset = ruleset(text);
            let metrics = HitMetrics::new(&ruleset, &HitMetrics::default());
            MeteredRule { engine: Engine::new(100_000), ruleset, metrics }
        }

        fn ask(&self, descriptors: &[Descriptor<'_>]) {
            let request = Request::new("d", descriptors.iter().cloned().collect(), &Bounds::default()).unwrap();
            let decision = self.engine.decide(&self.ruleset, &request, Modes::default(), 1_000_000);
            self.metrics.record(&request, &decision, 0.8);
        }

        fn hit(&self, key: &str, value: &str, hits: Hits) {
            self.ask(&[descriptor(&[(key, value)], hits)]);
        }

        /// `key1.key2 total/over/near/within/shadow`, in order, and ` -n` if some were given back.
        fn said(&self) -> Vec<String> {
            let line = |(labels, counts): (&Labels, &HitCounts)| {
                let key2 = labels.key2.as_ref().map_or(String::new(), |key2| format!(".{key2}"));
                let of_hits: Vec<String> =
                    HitCounter::OF_HITS.iter().map(|of| counts[*of as usize].to_string()).collect();
                let given_back = match counts[HitCounter::Negative as usize] {
                    0 => String::new(),
                    hits => format!(" -{hits}"),
                };
                format!("{}{key2} {}{given_back}", labels.key1, of_hits.join("/"))
            };
            self.metrics.read().iter().map(line).collect()
        }
    }

    const LIMIT_10: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 10, unit: year}}
  - {key: s, shadow_mode: true, rate_limit: {requests_per_unit: 10, unit: year}}
  - {key: z, rate_limit: {requests_per_unit: 0, unit: year}}
";

    #[test]
    fn hits_that_straddle_a_threshold_are_split() {
        let metered = MeteredRule::new(LIMIT_10);
        metered.hit("a", "x", Hits::OfRequest(7));
        assert_eq!(metered.said(), ["a 7/0/0/7/0"]);
        metered.hit("a", "x", Hits::OfRequest(2));
        assert_eq!(metered.said(), ["a 9/0/1/9/0"], "one of two is above 8");
        metered.hit("a", "x", Hits::OfRequest(3));
        assert_eq!(metered.said(), ["a 12/2/1/9/0"], "denied: what would not have fit is over, nothing is charged");
        metered.hit("a", "x", Hits::Own(3));
        assert_eq!(metered.said(), ["a 15/4/2/9/0"], "charged over the limit: the one that fit was near it");
        metered.hit("a", "x", Hits::OfRequest(5));
        assert_eq!(metered.said(), ["a 20/9/2/9/0"]);
        metered.hit("a", "x", Hits::Own(0));
        metered.hit("a", "x", Hits::Refund(5));
        assert_eq!(metered.said(), ["a 20/9/2/9/0 -5"], "peeks and refunds are no hits");
    }

    #[test]
    fn what_is_given_back_is_counted_apart_also_where_nothing_was_hit() {
        let metered = MeteredRule::new(LIMIT_10);
        metered.hit("a", "x", Hits::Refund(5));
        metered.hit("a", "y", Hits::Refund(2));
        metered.hit("unknown", "x", Hits::Refund(1));
        assert_eq!(metered.said(), ["a 0/0/0/0/0 -7"]);
    }

    #[test]
    fn a_shadow_rule_counts_what_it_would_have_denied() {
        let metered = MeteredRule::new(LIMIT_10);
        metered.hit("s", "x", Hits::OfRequest(12));
        metered.hit("s", "x", Hits::OfRequest(1));
        assert_eq!(metered.said(), ["s 13/3/2/0/3"]);
    }

    #[test]
    fn what_another_rule_denies_is_neither_within_nor_near() {
        let metered = MeteredRule::new(LIMIT_10);
        metered.ask(&[
            descriptor(&[("a", "x")], Hits::OfRequest(1)),
            descriptor(&[("z", "x")], Hits::OfRequest(1)),
            descriptor(&[("unknown", "x")], Hits::OfRequest(1)),
        ]);
        assert_eq!(metered.said(), ["a 1/0/0/0/0", "z 1/1/0/0/0"]);
    }

    #[test]
    fn deeper_levels_are_added_up_and_values_are_named_on_request() {
        let metered = MeteredRule::new(
            "
domain: d
descriptors:
  - key: a
    value: one
    descriptors:
      - key: b
        rate_limit: {requests_per_unit: 10, unit: year}
        descriptors:
          - {key: c, rate_limit: {requests_per_unit: 10, unit: year}}
  - key: v
    value_to_metric: true
    rate_limit: {requests_per_unit: 10, unit: year}
    descriptors:
      - {key: w, value: 'x*', detailed_metric: true, rate_limit: {requests_per_unit: 10, unit: year}}
",
        );
        let one = Hits::OfRequest(1);
        metered.ask(&[descriptor(&[("a", "one"), ("b", "x")], one)]);
        metered.ask(&[descriptor(&[("a", "one"), ("b", "y"), ("c", "z")], one)]);
        metered.ask(&[descriptor(&[("v", "10.0.0.1")], one)]);
        metered.ask(&[descriptor(&[("v", "")], one)]);
        metered.ask(&[descriptor(&[("v", "a:b"), ("w", "xyz")], one)]);
        let line = |labels: &str, count: u64| format!("{labels} {count}/0/0/{count}/0");
        let expected = [line("a_one.b", 2), line("v", 1), line("v_10_0_0_1", 1), line("v_a_b.w_xyz", 1)];
        assert_eq!(metered.said(), expected);
    }

    #[test]
    fn values_beyond_the_bound_share_a_series() {
        let metered = MeteredRule::new(
            "
domain: d
descriptors:
  - {key: a, detailed_metric: true, rate_limit: {requests_per_unit: 10, unit: year}}
",
        );
        for number in 0..10_000 {
            metered.hit("a", &format!("v{number}"), Hits::OfRequest(1));
        }
        let said = metered.said();
        assert_eq!(said.len(), SERIES_PER_RULE_MAX + 1);
        assert!(said.contains(&"a_other 9000/0/0/9000/0".to_owned()), "{:?}", said.first());
    }

    #[test]
    fn counting_allocates_nothing() {
        let metered = MeteredRule::new(LIMIT_10);
        let descriptors = [descriptor(&[("a", "x")], Hits::OfRequest(1)), descriptor(&[("s", "y")], Hits::Own(3))];
        let request = Request::new("d", descriptors.into_iter().collect(), &Bounds::default()).unwrap();
        let decision = metered.engine.decide(&metered.ruleset, &request, Modes::default(), 1_000_000);
        let outcomes = crate::observe::outcome::Outcomes::default();
        let record = || {
            metered.metrics.record(&request, &decision, 0.8);
            outcomes.record(&decision, std::time::Duration::from_micros(3));
        };
        // The first time, a thread learns which stripe is its own.
        record();
        assert_eq!(allocation_counter::measure(record).count_total, 0);
    }

    #[test]
    fn counters_go_on_after_a_reload_and_leave_with_their_rules() {
        let rules = |keys: &[&str]| {
            let rule = |key: &&str| {
                format!("  - {{key: {key}, value_to_metric: true, rate_limit: {{requests_per_unit: 9, unit: year}}}}\n")
            };
            format!("domain: d\ndescriptors:\n{}", keys.iter().map(rule).collect::<String>())
        };
        let mut metered = MeteredRule::new(&rules(&["a", "b"]));
        metered.hit("a", "x", Hits::OfRequest(1));
        metered.hit("b", "x", Hits::OfRequest(1));
        metered.ruleset = ruleset(&rules(&["c", "b"]));
        metered.metrics = HitMetrics::new(&metered.ruleset, &metered.metrics);
        metered.hit("b", "x", Hits::OfRequest(1));
        assert_eq!(metered.said(), ["b_x 2/0/0/2/0"]);
    }
}
