//! How rules are named in the table that regions share, and which rule a row is about.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::global::row::RuleName;
use crate::rules::limit::{Limit, Space, Terms};
use crate::rules::policy::{Algorithm, Scope};
use crate::rules::{OVERRIDE_RULE_ID, Ruleset};

/// The longest domain and rule id that the table holds as they are.
const WORKSPACE_BYTES_MAX: usize = 191;
const NAMESPACE_BYTES_MAX: usize = 255;

/// A rule by its names.
#[derive(Clone, Debug)]
pub(crate) struct NamedRule {
    /// As rows have it: domain and rule id, or their digests if they are longer than 191 or 255 bytes.
    pub name: RuleName,
    /// The digest of domain and rule id, by which this process finds the rule.
    pub space: Space,
    /// Its keys are sensitive: their identifiers in rows are keyed digests.
    pub is_sensitive: bool,
    /// The limits that it has, with their scopes; requests may bring other windows.
    limits: Vec<(Terms, Option<Scope>)>,
}

impl NamedRule {
    /// How a window of the rule is counted. A window that a request has brought is counted without a limit.
    pub(crate) fn terms(&self, window_ms: u64) -> Terms {
        let of_window = self.limits.iter().map(|(terms, _)| terms).find(|terms| terms.window_ms == window_ms);
        let algorithm = of_window.or(self.limits.first().map(|(terms, _)| terms)).map(|terms| terms.algorithm);
        let algorithm = algorithm.filter(|algorithm| algorithm.is_windowed());
        let unknown =
            Terms { limit: u32::MAX, window_ms, algorithm: algorithm.unwrap_or(Algorithm::DEFAULT), burst: u32::MAX };
        of_window.copied().unwrap_or(unknown)
    }

    /// Whether rows of a window are about anything that is counted in all regions.
    pub(crate) fn is_global(&self, window_ms: u64) -> bool {
        let of_window = self.limits.iter().find(|(terms, _)| terms.window_ms == window_ms);
        of_window.is_none_or(|(terms, scope)| {
            terms.algorithm.is_windowed() && !matches!(scope, Some(Scope::Local | Scope::Regional))
        })
    }

    /// Whether rows count for this rule that did not for the one of the same name before it. A window that the one before
    /// did not list was counted already: a request may bring any.
    fn hears_more_than(&self, before: &NamedRule) -> bool {
        let mut left_out = before.limits.iter().map(|(terms, _)| terms.window_ms).filter(|it| !before.is_global(*it));
        self.is_sensitive != before.is_sensitive || left_out.any(|window_ms| self.is_global(window_ms))
    }
}

/// The rules in force, by space and by row name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    named: Vec<NamedRule>,
    by_space: HashMap<Space, usize>,
    by_text: HashMap<RuleName, usize>,
}

impl Names {
    pub(crate) fn new(ruleset: &Ruleset) -> Names {
        let mut names = Names::default();
        for domain in ruleset.domains() {
            let is_sensitive = domain.has_sensitive_keys();
            let mut add = |rule_id: &str, space: Space, limits: &[Limit]| {
                let name = RuleName {
                    workspace: fitted(domain.name.as_bytes(), WORKSPACE_BYTES_MAX),
                    namespace: fitted(rule_id.as_bytes(), NAMESPACE_BYTES_MAX),
                };
                let named = NamedRule {
                    name: name.clone(),
                    space,
                    is_sensitive,
                    limits: limits.iter().map(|limit| (limit.terms, limit.policy.scope)).collect(),
                };
                let at = names.named.len();
                names.by_space.insert(space, at);
                names.by_text.insert(name, at);
                names.named.push(named);
            };
            add(OVERRIDE_RULE_ID, domain.override_space, &[]);
            for rule in domain.rules() {
                add(&rule.id, rule.space, rule.limits());
            }
        }
        names
    }

    pub(crate) fn of_space(&self, space: Space) -> Option<&NamedRule> {
        self.by_space.get(&space).map(|at| &self.named[*at])
    }

    pub(crate) fn of_row(&self, workspace: &[u8], namespace: &[u8]) -> Option<&NamedRule> {
        // The map's keys own their bytes.
        self.of_name(&RuleName { workspace: workspace.into(), namespace: namespace.into() })
    }

    fn of_name(&self, name: &RuleName) -> Option<&NamedRule> {
        self.by_text.get(name).map(|at| &self.named[*at])
    }

    /// Whether rows of this name are about a rule here.
    pub(crate) fn has(&self, name: &RuleName) -> bool {
        self.by_text.contains_key(name)
    }

    /// The rules of which rows mean something now that were left out, or meant something else, under the rules before.
    pub(crate) fn unread_after<'n>(&'n self, before: &'n Names) -> impl Iterator<Item = &'n NamedRule> {
        self.named.iter().filter(|rule| before.of_name(&rule.name).is_none_or(|before| rule.hears_more_than(before)))
    }
}

/// A name, or its digest if the column is too short for it.
fn fitted(name: &[u8], bytes_max: usize) -> Box<[u8]> {
    if name.len() <= bytes_max {
        return name.into();
    }
    let hex: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}").into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Options, RuleText};

    fn names(text: &str) -> Names {
        let loaded = Ruleset::load(&[RuleText { name: "t".into(), text: text.into() }], &Options::default());
        Names::new(&loaded.ruleset.unwrap_or_else(|| panic!("{:?}", loaded.problems)))
    }

    #[test]
    fn a_rule_is_found_by_its_space_and_by_its_row() {
        let names = names("{domain: d, descriptors: [{key: k, rate_limit: {requests_per_unit: 5, unit: minute}}]}");
        let named = names.of_row(b"d", b"k").unwrap();
        assert_eq!(names.of_space(named.space).unwrap().name, named.name);
        assert_eq!((named.terms(60_000).limit, named.terms(1000).limit), (5, u32::MAX));
        assert!(names.of_row(b"d", b"other").is_none() && names.of_row(b"d", b"override").is_some());
    }

    #[test]
    fn what_is_too_long_becomes_a_digest() {
        let value = "v".repeat(300);
        let names = names(&format!(
            "{{domain: d, descriptors: [{{key: k, value: {value}, rate_limit: {{requests_per_unit: 5, unit: minute}}}}]}}"
        ));
        let long = names.named.iter().find(|named| named.name.namespace.starts_with(b"sha256:")).unwrap();
        assert_eq!(long.name.namespace.len(), 7 + 64);
        assert!(names.of_row(b"d", &long.name.namespace).is_some());
    }

    #[test]
    fn what_stays_in_a_region_is_not_global() {
        let names = names(
            "{domain: d, descriptors: [{key: k, rate_limits: [\
             {requests_per_unit: 5, unit: minute, scope: regional}, {requests_per_unit: 9, unit: hour}]}]}",
        );
        let named = names.of_row(b"d", b"k").unwrap();
        assert!(!named.is_global(60_000) && named.is_global(3_600_000) && named.is_global(86_400_000));
    }

    #[test]
    fn rules_are_unread_if_rows_were_left_out_or_meant_something_else() {
        let of = |limits: &str| names(&format!("{{domain: d, descriptors: [{{key: k, {limits}}}]}}"));
        let unread = |before: &Names, after: &Names| -> Vec<String> {
            let rules = after.unread_after(before);
            rules.map(|rule| String::from_utf8_lossy(&rule.name.namespace).into_owned()).collect()
        };
        let minute = of("rate_limit: {requests_per_unit: 5, unit: minute}");
        let more = of("rate_limits: [{requests_per_unit: 7, unit: minute}, {requests_per_unit: 70, unit: hour}]");
        let regional = of("rate_limit: {requests_per_unit: 5, unit: minute, scope: regional}");
        let bucket = of("rate_limit: {requests_per_unit: 5, unit: minute, algorithm: gcra}");
        let secret = of("sensitive: true, rate_limit: {requests_per_unit: 5, unit: minute}");
        for (before, after) in [(&minute, &minute), (&minute, &more), (&more, &minute), (&minute, &regional)] {
            assert_eq!(unread(before, after), Vec::<String>::new(), "{before:?} {after:?}");
        }
        for (before, after) in [(&regional, &minute), (&bucket, &minute), (&regional, &more)] {
            assert_eq!(unread(before, after), ["k"]);
        }
        assert_eq!(unread(&minute, &secret), ["override", "k"], "digests name what values named");
        let other = names("{domain: d, descriptors: [{key: o, rate_limit: {requests_per_unit: 5, unit: minute}}]}");
        assert_eq!(unread(&minute, &other), ["o"]);
        assert_eq!(unread(&Names::default(), &minute), ["override", "k"]);
    }
}
