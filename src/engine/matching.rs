//! The limits that a descriptor meets: those of its rule, or the one it brings along.
//!
//! Deciding and peeking both find limits here, so that explanations agree with decisions.

use std::ops::Range;

use smallvec::SmallVec;

use crate::engine::Modes;
use crate::engine::decide::Group;
use crate::engine::key::{IdentifierBuffer, Key};
use crate::request::{Descriptor, LimitOverride};
use crate::rules::Domain;
use crate::rules::limit::{Limit, Rule, Space, Terms};
use crate::rules::policy::{Algorithm, Charge, Policy};
use crate::rules::tree::Identifier;

/// The rule of a descriptor, the limit it brings along, and its identifier.
pub(super) struct Match<'r> {
    /// The rule that matches, also if an override takes the place of its limits.
    pub(super) rule: Option<&'r Rule>,
    override_limit: Option<MatchedLimit<'r>>,
    /// Where its identifier is in the buffer of the request.
    identifier: Range<usize>,
}

/// One limit that a descriptor meets.
#[derive(Clone, Copy)]
pub(super) struct MatchedLimit<'r> {
    /// Which of the rule's limits it is; 0 for a request override.
    pub(super) index: u32,
    /// `None` for a request override.
    pub(super) limit: Option<&'r Limit>,
    /// As configured: not yet reduced to this region's part.
    pub(super) terms: Terms,
    /// An override has that of the limit that it stands in for, or [`Charge::Auto`].
    pub(super) charge: Charge,
    /// An override has the policy of the limit that it stands in for, `None` if it stands in for none.
    pub(super) policy: Option<&'r Policy>,
    space: Space,
}

impl<'r> Match<'r> {
    /// Finds a descriptor's rule, and names the key. Overrides need a known domain as well.
    pub(super) fn find(
        domain: Option<&'r Domain>,
        descriptor: &Descriptor<'_>,
        identifiers: &mut IdentifierBuffer,
    ) -> Match<'r> {
        let Some(domain) = domain else { return Match { rule: None, override_limit: None, identifier: 0..0 } };
        let rule = domain.find(&descriptor.entries, identifiers);
        let override_limit = descriptor.limit.map(|limit| match rule {
            Some(rule) => MatchedLimit::instead_of(rule, &limit),
            None => {
                identifiers.restart();
                for entry in &descriptor.entries {
                    identifiers.push(entry.key);
                    identifiers.push(entry.value);
                }
                MatchedLimit::brought_along(domain.override_space, &limit)
            }
        });
        Match { rule, override_limit, identifier: identifiers.finish() }
    }

    pub(super) fn identifier<'i>(&self, identifiers: &'i IdentifierBuffer) -> &'i [u8] {
        identifiers.get(self.identifier.clone())
    }

    /// The limits to hold, including those that another rule of the request replaces.
    #[inline(always)]
    pub(super) fn limits(&self) -> impl Iterator<Item = MatchedLimit<'r>> {
        let count = match (self.rule, &self.override_limit) {
            (_, Some(_)) => 1,
            (Some(rule), None) => rule.limits().len() as u32,
            (None, None) => 0,
        };
        // By number, which is cheaper than chaining iterators.
        (0..count).filter_map(|index| self.met(index))
    }

    #[inline(always)]
    fn met(&self, index: u32) -> Option<MatchedLimit<'r>> {
        if let Some(brought) = &self.override_limit {
            return Some(*brought);
        }
        let rule = self.rule?;
        let limit = rule.limits().get(index as usize)?;
        let Limit { terms, charge, policy, .. } = limit;
        Some(MatchedLimit {
            index,
            limit: Some(limit),
            terms: *terms,
            charge: *charge,
            policy: Some(policy),
            space: rule.space,
        })
    }

    /// The rule's limit at an index; `None` for a request override.
    #[inline]
    pub(super) fn limit(&self, index: u32) -> Option<&'r Limit> {
        self.rule.filter(|_| self.override_limit.is_none())?.limits().get(index as usize)
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.override_limit.is_none() && self.rule.is_some_and(Rule::is_unlimited)
    }

    /// What the descriptor's verdict means for the request. `is_limited`: it has a limit that nothing replaces.
    #[inline]
    pub(super) fn group(&self, is_limited: bool, modes: Modes) -> Group {
        match self.rule.filter(|_| self.override_limit.is_none()) {
            None => Group { is_shadow: false, is_quota: modes.quota },
            Some(rule) if is_limited => Group { is_shadow: rule.shadow_mode, is_quota: rule.quota_mode || modes.quota },
            // In the global quota mode a descriptor left without limits passes as a quota; an unlimited one takes no part.
            Some(rule) => Group { is_shadow: false, is_quota: modes.quota && !rule.is_unlimited() },
        }
    }
}

impl<'r> MatchedLimit<'r> {
    /// An override of a rule keeps the rule's key and counts as the rule does, so that counts of the same window carry
    /// over. It stands in for the limit of the same window, or for the first.
    fn instead_of(rule: &'r Rule, limit: &LimitOverride) -> MatchedLimit<'r> {
        let window_ms = limit.unit.window_ms();
        let own = rule.limits().iter().find(|own| own.terms.window_ms == window_ms).or(rule.limits().first());
        let of_nothing = MatchedLimit::brought_along(rule.space, limit);
        own.map_or(of_nothing, |own| MatchedLimit {
            terms: Terms { algorithm: own.terms.algorithm, ..of_nothing.terms },
            charge: own.charge,
            policy: Some(&own.policy),
            ..of_nothing
        })
    }

    /// An override that has no limit to take algorithm, charge and policy from.
    fn brought_along(space: Space, limit: &LimitOverride) -> MatchedLimit<'r> {
        let number = limit.requests_per_unit;
        let terms =
            Terms { limit: number, window_ms: limit.unit.window_ms(), algorithm: Algorithm::DEFAULT, burst: number };
        MatchedLimit { index: 0, limit: None, terms, charge: Charge::Auto, policy: None, space }
    }

    pub(super) fn key<'i>(&self, identifier: &'i [u8]) -> Key<'i> {
        Key::new(self.space, &self.terms, identifier)
    }
}

/// The names of limits that the rules of a request replace.
pub(super) struct ReplacedLimits<'r>(SmallVec<[&'r str; 2]>);

impl<'r> ReplacedLimits<'r> {
    pub(super) fn by(matches: &[Match<'r>]) -> ReplacedLimits<'r> {
        let rules = matches.iter().filter(|found| found.override_limit.is_none()).filter_map(|found| found.rule);
        let mut names: SmallVec<[&str; 2]> = rules.flat_map(Rule::replaces).map(|name| &**name).collect();
        // Many descriptors may name the same few.
        names.sort_unstable();
        names.dedup();
        ReplacedLimits(names)
    }

    #[inline]
    pub(super) fn contains(&self, met: &MatchedLimit<'_>) -> bool {
        met.limit.is_some_and(|limit| self.0.binary_search(&&*limit.name).is_ok())
    }
}
