//! Does it fit: the rules that a request meets, the keys they count, and one decision over all of them.
//!
//! Pure and synchronous; `now` is an argument. [`Engine::decide`] is the whole request: find the rules, drop what is
//! replaced, name the keys, and let [`decide`](decide::decide) judge and charge them.

pub mod count;
pub mod decide;
pub mod key;
pub mod peek;
pub mod reach;
pub mod reason;
pub(crate) mod steps;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::ops::Range;

use smallvec::SmallVec;

use crate::engine::decide::given_back::GivenBack;
use crate::engine::decide::{Charging, Check, Consult, Group, Outcome, Question, Verdict, Why, decide};
use crate::engine::key::{IdentifierBuffer, Key, OwnedKey};
use crate::engine::reach::{Enforcement, Layers, Reach, Store};
use crate::engine::table::weight::Capacity;
use crate::engine::table::{Table, TableStats};
use crate::request::{Descriptor, Hits, LimitOverride, Request, Unit};
use crate::rules::limit::{Limit, Rule, Space, Terms};
use crate::rules::policy::{Algorithm, Charge, Class, OnOutage, Scope};
use crate::rules::tree::Identifier;
use crate::rules::{Domain, Ruleset};

/// Modes that an operator sets for all rules at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Nothing is denied, everything is counted.
    pub shadow: bool,
    /// Every descriptor is a quota descriptor.
    pub quota: bool,
}

/// What a descriptor came to.
#[derive(Clone, Copy, Debug)]
pub struct Status<'r> {
    /// The descriptor is over its limit, and says so.
    pub is_over: bool,
    /// It is over, and its rule's shadow mode says OK.
    pub is_shadowed: bool,
    /// Its verdict counts only together with those of the other quota descriptors.
    pub is_quota: bool,
    /// The rule that was matched, also if an override or a replacement took its limits away.
    pub rule: Option<&'r Rule>,
    pub kind: StatusKind<'r>,
}

#[derive(Clone, Copy, Debug)]
pub enum StatusKind<'r> {
    /// No rule, an unknown domain, or a rule that another one of the request replaces.
    Unmatched,
    Unlimited,
    /// The limit that matters most of those that apply.
    Limited(Limited<'r>),
}

#[derive(Clone, Copy, Debug)]
pub struct Limited<'r> {
    /// `None` for a request override.
    pub limit: Option<&'r Limit>,
    /// With this region's part of the limit, if it is split.
    pub terms: Terms,
    /// The scope in force.
    pub scope: Scope,
    pub on_outage: OnOutage,
    /// Nobody else counts with this process.
    pub is_alone: bool,
    /// Enforcement to the region's part of the limit, because other regions can't be heard.
    pub is_cut_off: bool,
    pub verdict: Verdict,
}

impl Limited<'_> {
    pub fn unit(&self) -> Option<Unit> {
        Unit::of_window_ms(self.terms.window_ms)
    }
}

/// The answer to a request, before it is put into anyone's wire format.
#[derive(Clone, Debug)]
pub struct Decision<'r> {
    /// `None` if no rules are for the domain.
    pub domain: Option<&'r Domain>,
    pub is_over: bool,
    /// Would have been denied if it were not for the global shadow mode.
    pub is_globally_shadowed: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 2]>,
    /// The policy of the first of its limits that an outage has left to its policy.
    pub outage_policy: Option<OnOutage>,
}

impl Decision<'_> {
    /// How long a denied client should wait: the longest of its denials, `None` if no wait would help.
    pub fn retry_after_ms(&self) -> Option<u64> {
        if !self.is_over {
            return None;
        }
        let decisive = self.decisive()?;
        let StatusKind::Limited(limited) = &decisive.kind else { return None };
        (!limited.verdict.is_hopeless).then_some(limited.verdict.reset_ms)
    }

    /// The status that settled the answer: the denial with the longest wait, otherwise the least remaining. Quota
    /// descriptors deny together, so of those the one that is the first to pass again counts.
    pub fn decisive(&self) -> Option<&Status<'_>> {
        if !self.is_over {
            return weightiest(self.statuses.iter());
        }
        let quota = || self.statuses.iter().filter(|status| status.is_quota);
        let do_quotas_deny = quota().all(|status| status.is_over);
        let first_quota = quota().filter(|_| do_quotas_deny).min_by_key(|status| wait(status));
        weightiest(self.statuses.iter().filter(|status| status.is_over && !status.is_quota).chain(first_quota))
    }
}

/// The longest wait, or the least remaining, of those that have a limit.
fn weightiest<'s, 'r: 's>(statuses: impl Iterator<Item = &'s Status<'r>>) -> Option<&'s Status<'r>> {
    let verdict = |status: &Status<'_>| match &status.kind {
        StatusKind::Limited(limited) => Some(limited.verdict),
        StatusKind::Unmatched | StatusKind::Unlimited => None,
    };
    statuses.filter(|status| verdict(status).is_some()).reduce(|best, status| match (verdict(best), verdict(status)) {
        (Some(a), Some(b)) if is_weightier(&b, &a) => status,
        _ => best,
    })
}

/// How long until a status passes.
fn wait(status: &Status<'_>) -> u64 {
    match &status.kind {
        StatusKind::Limited(limited) if limited.verdict.is_hopeless => u64::MAX,
        StatusKind::Limited(limited) => limited.verdict.reset_ms,
        StatusKind::Unmatched | StatusKind::Unlimited => 0,
    }
}

/// Which of two verdicts a status reports: over before within, then the longer wait, or the less remaining.
fn is_weightier(candidate: &Verdict, than: &Verdict) -> bool {
    let wait = |verdict: &Verdict| if verdict.is_hopeless { u64::MAX } else { verdict.reset_ms };
    match (candidate.is_over, than.is_over) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => wait(candidate) > wait(than),
        (false, false) => candidate.remaining < than.remaining,
    }
}

/// The limits of a descriptor, found but not yet checked.
struct Found<'r> {
    rule: Option<&'r Rule>,
    override_terms: Option<(Space, Terms, Charge)>,
    /// Into the identifiers of the request.
    identifier: Range<usize>,
}

/// Counts, and decides by them.
#[derive(Debug)]
pub struct Engine {
    table: Table,
    layers: Layers,
}

/// What an attempt to decide a request came to.
#[derive(Clone, Debug)]
pub enum Attempt<'r> {
    Decided(Decision<'r>),
    /// A store has to be asked first.
    Asks(StoreRequest),
}

/// What to ask a store before a request can be decided.
#[derive(Clone, Debug)]
pub struct StoreRequest {
    pub store: Store,
    /// What it admits is charged. Otherwise it only judges: another store, which is farther, decides after it.
    pub charges: bool,
    /// A strict limit is asked about, which may take longer.
    pub is_strict: bool,
    /// The most important class of what is asked about.
    pub class: Class,
    /// How many checks the request has: the answer is about all of them.
    pub checks: usize,
    pub questions: SmallVec<[StoreQuestion; 2]>,
    /// A quota group that the store is not asked about is not over, so quotas deny nothing.
    pub has_free_quota: bool,
    /// What this look has given back, for the next one to know. Only the first look gives back.
    pub given_back: Option<Box<GivenBack>>,
}

/// One key to ask about.
#[derive(Clone, Debug)]
pub struct StoreQuestion {
    /// Into the request's checks.
    pub check: usize,
    pub key: OwnedKey,
    pub terms: Terms,
    pub hits: u64,
    /// See [`Question::counted_after`].
    pub counted_after: i64,
    /// `None` to read how it stands, otherwise whether it fits, and as part of which quota group.
    pub judged: Option<Option<u16>>,
    /// What other regions have counted is left out.
    pub is_cut_off: bool,
    /// Memory never decides it.
    pub is_strict: bool,
    pub why: Why,
}

impl Engine {
    pub fn new(capacity: impl Into<Capacity>) -> Engine {
        Engine::with(capacity, Layers::ALONE)
    }

    /// An engine whose counts are shared as the layers say.
    pub fn with(capacity: impl Into<Capacity>, layers: Layers) -> Engine {
        let capacity = capacity.into();
        let table = match layers {
            Layers { is_global: true, place, .. } => Table::global(capacity, place.regions),
            Layers { is_regional: false, owner: None, .. } => Table::new(capacity),
            _ => Table::shared(capacity),
        };
        Engine { table, layers }
    }

    /// Takes a hasher of the caller's choosing, see [`Table::hashed_by`].
    pub fn hashed_by(self, hasher: ahash::RandomState) -> Engine {
        Engine { table: self.table.hashed_by(hasher), ..self }
    }

    /// Decides a request from memory and charges what is to be charged.
    pub fn decide<'r>(&self, ruleset: &'r Ruleset, request: &Request<'_>, modes: Modes, now_ms: u64) -> Decision<'r> {
        match self.attempt(ruleset, request, modes, now_ms, &Consult::ALONE) {
            Attempt::Decided(decision) => decision,
            Attempt::Asks(_) => unreachable!("who may not ask decides"),
        }
    }

    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Decides a request and charges what is to be charged, or says what to ask a store first.
    pub fn attempt<'r>(
        &self,
        ruleset: &'r Ruleset,
        request: &Request<'_>,
        modes: Modes,
        now_ms: u64,
        consult: &Consult<'_>,
    ) -> Attempt<'r> {
        let domain = ruleset.domain(request.domain());
        let mut identifiers = IdentifierBuffer::default();
        let found: SmallVec<[Found<'r>; 2]> =
            request.descriptors().iter().map(|descriptor| find(domain, descriptor, &mut identifiers)).collect();
        let mut replaced: SmallVec<[&str; 2]> = found
            .iter()
            .filter(|found| found.override_terms.is_none())
            .filter_map(|found| found.rule)
            .flat_map(Rule::replaces)
            .map(|name| &**name)
            .collect();
        // Many descriptors may name the same few.
        replaced.sort_unstable();
        replaced.dedup();

        let mut checks: SmallVec<[Check<'_>; 4]> = SmallVec::new();
        let mut limits: SmallVec<[(Option<&'r Limit>, Option<Class>); 4]> = SmallVec::new();
        let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
        for (group, (found, descriptor)) in found.iter().zip(request.descriptors()).enumerate() {
            let identifier = identifiers.get(found.identifier.clone());
            let is_sensitive = domain.is_some_and(Domain::has_sensitive_keys);
            if let Some((space, terms, charge)) = &found.override_terms {
                let of_rule = found.rule.and_then(|rule| limit_of(rule, terms.window_ms)).map(|limit| &limit.policy);
                let held = self.layers.hold(terms, of_rule, consult.is_cut_off);
                let key = Key::new(*space, terms, identifier);
                checks.push(check(key, &held, charging(descriptor.hits, *charge), group, is_sensitive));
                limits.push((None, held.class));
                groups.push(Group { is_shadow: false, is_quota: modes.quota });
                continue;
            }
            let Some(rule) = found.rule else {
                groups.push(Group { is_shadow: false, is_quota: modes.quota });
                continue;
            };
            let kept = rule.limits().iter().filter(|limit| replaced.binary_search(&&*limit.name).is_err());
            let before = checks.len();
            for limit in kept {
                let held = self.layers.hold(&limit.terms, Some(&limit.policy), consult.is_cut_off);
                let key = Key::new(rule.space, &limit.terms, identifier);
                checks.push(check(key, &held, charging(descriptor.hits, limit.charge), group, is_sensitive));
                limits.push((Some(limit), held.class));
            }
            let is_limited = checks.len() > before;
            // A descriptor without a limit passes as a quota descriptor in the global mode; an unlimited one takes no part.
            let is_quota =
                if is_limited { rule.quota_mode || modes.quota } else { modes.quota && !rule.is_unlimited() };
            groups.push(Group { is_shadow: is_limited && rule.shadow_mode, is_quota });
        }

        let outcome = decide(&self.table, &checks, &groups, modes.shadow, now_ms, consult);
        if !outcome.questions.is_empty() {
            let classes = limits.iter().map(|(_, class)| *class);
            return Attempt::Asks(inquiry(&checks, &groups, outcome, &classes.collect::<SmallVec<[_; 4]>>()));
        }
        let mut statuses: SmallVec<[Status<'r>; 2]> = found
            .iter()
            .zip(&groups)
            .map(|(found, group)| {
                let is_unlimited = found.override_terms.is_none() && found.rule.is_some_and(Rule::is_unlimited);
                let kind = if is_unlimited { StatusKind::Unlimited } else { StatusKind::Unmatched };
                Status { is_over: false, is_shadowed: false, is_quota: group.is_quota, rule: found.rule, kind }
            })
            .collect();
        let mut is_any_over = false;
        let mut outage_policy = None;
        for ((check, (limit, _)), verdict) in checks.iter().zip(&limits).zip(&outcome.verdicts) {
            let status = &mut statuses[check.group];
            status.is_shadowed |= verdict.is_over && groups[check.group].is_shadow;
            status.is_over |= verdict.is_over && !groups[check.group].is_shadow;
            is_any_over |= status.is_over;
            if let Some(policy) = check.outage_policy(verdict) {
                outage_policy.get_or_insert(policy);
            }
            let is_reported = match &status.kind {
                StatusKind::Limited(reported) => is_weightier(verdict, &reported.verdict),
                StatusKind::Unmatched | StatusKind::Unlimited => true,
            };
            if is_reported {
                let Check { terms, scope, on_outage, is_cut_off, reach, .. } = *check;
                let is_alone = reach == Reach::Process;
                let limited =
                    Limited { limit: *limit, terms, scope, on_outage, is_alone, is_cut_off, verdict: *verdict };
                status.kind = StatusKind::Limited(limited);
            }
        }
        let would_deny = || decide::denies(&groups, &decide::groups_over(&checks, &groups, &outcome.verdicts));
        let is_globally_shadowed = modes.shadow && is_any_over && would_deny();
        Attempt::Decided(Decision { domain, is_over: outcome.is_over, is_globally_shadowed, statuses, outage_policy })
    }

    /// Moves the keys of limits that another store shares from now on, so that it hears of what was accepted here.
    pub fn rehome(&self, ruleset: &Ruleset) {
        if self.layers.owner != Some(Store::Owner) {
            return;
        }
        let of_rule = |rule: &Rule| {
            let space = rule.space;
            let home = move |limit: &Limit| {
                Some(((space, limit.terms.window_ms), self.layers.hold_limit(limit).reach.store()?))
            };
            rule.limits().iter().filter_map(home).collect::<Vec<_>>()
        };
        let homes: HashMap<(Space, u64), Store> = ruleset.domains().flat_map(Domain::rules).flat_map(of_rule).collect();
        self.table.rehome(|key| homes.get(&(key.space, key.window_ms)).copied());
    }

    /// Removes expired keys, and others if the rest still takes more than it may. To be called about once a second.
    pub fn expire(&self, now_ms: u64) {
        self.table.expire(now_ms);
        self.table.trim(now_ms);
    }

    pub fn stats(&self) -> TableStats {
        self.table.stats()
    }

    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// What a descriptor meets: its rule, or the limit it brings along.
fn find<'r>(domain: Option<&'r Domain>, descriptor: &Descriptor<'_>, identifiers: &mut IdentifierBuffer) -> Found<'r> {
    // Overrides need a known domain as well.
    let Some(domain) = domain else { return Found { rule: None, override_terms: None, identifier: 0..0 } };
    let rule = domain.find(&descriptor.entries, identifiers);
    let override_terms = descriptor.limit.map(|limit| match rule {
        Some(rule) => overridden(rule, &limit),
        None => {
            identifiers.restart();
            for entry in &descriptor.entries {
                identifiers.push(entry.key);
                identifiers.push(entry.value);
            }
            let terms = override_terms(&limit, Algorithm::SlidingWindow);
            (domain.override_space, terms, Charge::Auto)
        }
    });
    Found { rule, override_terms, identifier: identifiers.finish() }
}

/// An override of a rule stays the rule's key, counted as the rule counts, so that counts of the same window carry over.
fn overridden(rule: &Rule, limit: &LimitOverride) -> (Space, Terms, Charge) {
    let (algorithm, charge) = limit_of(rule, limit.unit.window_ms())
        .map_or((Algorithm::SlidingWindow, Charge::Auto), |own| (own.terms.algorithm, own.charge));
    (rule.space, override_terms(limit, algorithm), charge)
}

/// The limit that an override stands in for: that of the same window, or the first.
fn limit_of(rule: &Rule, window_ms: u64) -> Option<&Limit> {
    rule.limits().iter().find(|own| own.terms.window_ms == window_ms).or(rule.limits().first())
}

fn override_terms(limit: &LimitOverride, algorithm: Algorithm) -> Terms {
    let number = limit.requests_per_unit;
    Terms { limit: number, window_ms: limit.unit.window_ms(), algorithm, burst: number }
}

/// How many hits a descriptor asks for, and how they are charged.
fn charging(hits: Hits, charge: Charge) -> (u64, Charging) {
    match (hits, charge) {
        (Hits::Refund(hits), _) => (hits, Charging::Refund),
        (Hits::OfRequest(hits), Charge::Always) => (hits, Charging::Always),
        (Hits::OfRequest(hits), Charge::Auto | Charge::Accepted) => (hits, Charging::Together),
        (Hits::Own(hits), Charge::Accepted) => (hits, Charging::Together),
        (Hits::Own(hits), Charge::Auto | Charge::Always) => (hits, Charging::Always),
    }
}

fn check<'a>(
    key: Key<'a>,
    held: &Enforcement,
    (hits, charging): (u64, Charging),
    group: usize,
    is_sensitive: bool,
) -> Check<'a> {
    let Enforcement { scope, terms, usual_limit, reach, on_outage, is_cut_off, .. } = *held;
    Check { key, terms, hits, charging, group, reach, scope, on_outage, is_cut_off, usual_limit, is_sensitive }
}

/// Puts what is to be asked into a form that outlives the request's borrowed values. The nearer store is asked first, and
/// only judges if the farther one is still to be asked.
fn inquiry(checks: &[Check<'_>], groups: &[Group], outcome: Outcome, classes: &[Option<Class>]) -> StoreRequest {
    let of = |store: Store| outcome.questions.iter().filter(move |question| question.store == store);
    let store = if of(Store::Origin).next().is_some() { Store::Origin } else { Store::Owner };
    let charges = store == Store::Owner || of(Store::Owner).next().is_none();
    let mut is_asked: SmallVec<[bool; 4]> = SmallVec::from_elem(false, groups.len());
    of(store).filter(|asked| asked.is_judged).for_each(|asked| is_asked[checks[asked.check].group] = true);
    let over = decide::groups_over(checks, groups, &outcome.verdicts);
    let is_free =
        |(at, group): (usize, &Group)| group.is_quota && !is_asked[at] && (group.is_shadow || !over.contains(at));
    let has_free_quota = groups.iter().enumerate().any(is_free);
    let asked = |question: &Question| {
        steps::count();
        let check = &checks[question.check];
        let quota = groups[check.group].is_quota.then(|| u16::try_from(check.group).unwrap_or(u16::MAX));
        StoreQuestion {
            check: question.check,
            key: OwnedKey::new(&check.key, check.is_sensitive, check.is_global()),
            terms: check.terms,
            hits: check.hits,
            counted_after: question.counted_after,
            judged: question.is_judged.then_some(quota),
            is_cut_off: check.is_cut_off,
            is_strict: check.scope == Scope::Strict,
            why: question.why,
        }
    };
    StoreRequest {
        store,
        charges,
        is_strict: of(store).any(|question| checks[question.check].scope == Scope::Strict),
        class: most_important(outcome.questions.iter().map(|question| classes[question.check])),
        checks: checks.len(),
        questions: of(store).map(asked).collect(),
        has_free_quota,
        given_back: outcome.given_back,
    }
}

/// What is given up last of these. A limit without a class is there for comfort.
fn most_important(classes: impl Iterator<Item = Option<Class>>) -> Class {
    let rank = |class: &Class| match class {
        Class::Comfort => 0,
        Class::Cost => 1,
        Class::Security => 2,
    };
    classes.map(|class| class.unwrap_or(Class::Comfort)).max_by_key(rank).unwrap_or(Class::Comfort)
}
