//! The answer to a request, before it is put into anyone's wire format.

use smallvec::SmallVec;

use crate::engine::decide::{Case, Check, Group, Outcome, Reach, Verdict};
use crate::engine::matching::Match;
use crate::engine::quota::QuotaRule;
use crate::request::Unit;
use crate::rules::Domain;
use crate::rules::limit::{Limit, Rule, Terms};
use crate::rules::policy::{OnOutage, Scope};

/// How a descriptor of a decided request stands.
#[derive(Clone, Copy, Debug)]
pub struct Status<'r> {
    /// The descriptor is over its limit, and its rule is not in shadow mode.
    pub is_over: bool,
    /// It is over, and its rule's shadow mode says OK.
    pub is_shadowed: bool,
    /// Its verdict counts only together with those of the other quota descriptors.
    pub is_quota: bool,
    /// The rule that was matched, also if an override or a replacement took its limits away.
    pub rule: Option<&'r Rule>,
    /// Whether a limit applies, and the one to report.
    pub kind: StatusKind<'r>,
}

impl Status<'_> {
    /// It is over, and that alone denies the request.
    pub(crate) fn denies_alone(&self) -> bool {
        self.is_over && !self.is_quota
    }
}

/// Whether a descriptor is limited, and by which limit.
#[derive(Clone, Copy, Debug)]
pub enum StatusKind<'r> {
    /// No rule, an unknown domain, or a rule that another one of the request replaces.
    Unmatched,
    Unlimited,
    /// The limit that matters most of those that apply.
    Limited(LimitStatus<'r>),
}

/// A limit of a descriptor, and the verdict on it.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'r> {
    /// `None` for a request override.
    pub limit: Option<&'r Limit>,
    /// The hits were held against these: with this region's part of the limit, if it is split or the region is cut off.
    pub terms: Terms,
    /// The scope in force.
    pub scope: Scope,
    /// The rule's policy for when the store gives no answer, whether that has happened or not.
    pub on_outage: OnOutage,
    /// Nobody else counts with this process.
    pub is_alone: bool,
    /// Held to the region's part of the limit, because other regions can't be heard.
    pub is_cut_off: bool,
    /// Of this limit alone: shadow and quota modes are not in it.
    pub verdict: Verdict,
}

impl<'r> LimitStatus<'r> {
    #[inline]
    fn new(limit: Option<&'r Limit>, check: &Check<'_>, verdict: &Verdict) -> LimitStatus<'r> {
        let Check { terms, scope, on_outage, is_cut_off, reach, .. } = *check;
        let is_alone = reach == Reach::Process;
        LimitStatus { limit, terms, scope, on_outage, is_alone, is_cut_off, verdict: *verdict }
    }

    /// The protocol's unit, when the window is one.
    pub fn unit(&self) -> Option<Unit> {
        Unit::of_window_ms(self.terms.window_ms)
    }
}

/// The answer to a request: whether it is denied, and how each of its descriptors stands.
#[derive(Clone, Debug)]
pub struct Decision<'r> {
    /// `None` if no rules are for the domain.
    pub domain: Option<&'r Domain>,
    /// The request is denied.
    pub is_over: bool,
    /// Would have been denied if it were not for the global shadow mode.
    pub is_globally_shadowed: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 2]>,
    /// The policy of the first limit that its policy decided, because of an outage. `None` if no policy did.
    pub outage_policy: Option<OnOutage>,
}

impl<'r> Decision<'r> {
    /// Puts the verdicts on the checks together, descriptor by descriptor.
    #[inline]
    pub(super) fn new(
        domain: Option<&'r Domain>,
        matches: &[Match<'r>],
        case: &Case<'_>,
        outcome: &Outcome,
    ) -> Decision<'r> {
        let status = |(found, group): (&Match<'r>, &Group)| {
            let kind = if found.is_unlimited() { StatusKind::Unlimited } else { StatusKind::Unmatched };
            Status { is_over: false, is_shadowed: false, is_quota: group.is_quota, rule: found.rule, kind }
        };
        let mut statuses: SmallVec<[Status<'r>; 2]> = matches.iter().zip(case.groups).map(status).collect();
        let mut is_any_over = false;
        let mut outage_policy = None;
        for (check, verdict) in case.checks.iter().zip(&outcome.verdicts) {
            let status = &mut statuses[check.group];
            let is_shadow = case.groups[check.group].is_shadow;
            status.is_shadowed |= verdict.is_over && is_shadow;
            status.is_over |= verdict.is_over && !is_shadow;
            is_any_over |= status.is_over;
            if let Some(policy) = check.outage_policy(verdict) {
                outage_policy.get_or_insert(policy);
            }
            let is_reported = match &status.kind {
                StatusKind::Limited(reported) => is_weightier(verdict, &reported.verdict),
                StatusKind::Unmatched | StatusKind::Unlimited => true,
            };
            if is_reported {
                let limit = matches[check.group].limit(check.limit_index);
                status.kind = StatusKind::Limited(LimitStatus::new(limit, check, verdict));
            }
        }
        let would_deny = || case.is_denied(&case.groups_over(&outcome.verdicts));
        let is_globally_shadowed = case.is_shadow && is_any_over && would_deny();
        Decision { domain, is_over: outcome.is_over, is_globally_shadowed, statuses, outage_policy }
    }

    /// How long a denied client should wait: as the [decisive](Decision::decisive) status says. `None` if the request is not
    /// denied, or no wait would help.
    pub fn retry_after_ms(&self) -> Option<u64> {
        if !self.is_over {
            return None;
        }
        let decisive = self.decisive()?;
        let StatusKind::Limited(limited) = &decisive.kind else { return None };
        (!limited.verdict.is_hopeless).then_some(limited.verdict.reset_ms)
    }

    /// The status that settled the answer: the denial with the longest wait, otherwise the least remaining. Quota
    /// descriptors deny together, so among those the one counts that passes again first.
    pub fn decisive(&self) -> Option<&Status<'r>> {
        if !self.is_over {
            return weightiest(self.statuses.iter());
        }
        let first_quota = self.denying().filter(|status| status.is_quota).min_by_key(|status| wait(status));
        weightiest(self.statuses.iter().filter(|status| status.denies_alone()).chain(first_quota))
    }

    /// The descriptors that deny the request, each alone or all quotas together.
    pub(crate) fn denying(&self) -> impl Iterator<Item = &Status<'r>> {
        let rule = QuotaRule::of(self.statuses.iter().map(|status| (status.is_quota, status.is_over)));
        let do_quotas_deny = rule.do_quotas_deny();
        self.statuses.iter().filter(move |status| status.denies_alone() || (status.is_quota && do_quotas_deny))
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

/// Milliseconds until a status passes, `u64::MAX` if it never does.
fn wait(status: &Status<'_>) -> u64 {
    match &status.kind {
        StatusKind::Limited(limited) if limited.verdict.is_hopeless => u64::MAX,
        StatusKind::Limited(limited) => limited.verdict.reset_ms,
        StatusKind::Unmatched | StatusKind::Unlimited => 0,
    }
}

/// Whether a status reports the candidate: over comes before within, then the longer wait, or the less remaining.
fn is_weightier(candidate: &Verdict, than: &Verdict) -> bool {
    let wait = |verdict: &Verdict| if verdict.is_hopeless { u64::MAX } else { verdict.reset_ms };
    match (candidate.is_over, than.is_over) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => wait(candidate) > wait(than),
        (false, false) => candidate.remaining < than.remaining,
    }
}
