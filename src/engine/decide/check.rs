//! One key of a request, what is asked of it, and how its hits are charged.

use crate::engine::count::counter::Counter;
use crate::engine::decide::store_views::Cause;
use crate::engine::decide::verdict::{Basis, Verdict};
use crate::engine::key::Key;
use crate::engine::reach::{Enforcement, Reach};
use crate::engine::table::foreign::View;
use crate::engine::table::regional_part::RegionalPart;
use crate::rules::limit::Terms;
use crate::rules::policy::{Class, OnOutage, Scope};

/// How the hits of a check are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeMode {
    /// With the rest of the request, if it is admitted.
    Together,
    /// Whatever the verdict, over the limit too.
    Always,
    /// Given back, whatever the verdict.
    Refund,
}

/// One limit that a request has to pass: the key that counts it, and the hits.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Other checks of the request may have the same one: they are twins.
    pub key: Key<'a>,
    /// The hits are held against these: with this region's part of the limit, if only that is given out.
    pub terms: Terms,
    /// May be 0, to find out how the key stands.
    pub hits: u64,
    /// Whether the hits depend on the verdict, or are given back.
    pub charging: ChargeMode,
    /// Its place among the groups: the descriptor that this limit belongs to.
    pub group: usize,
    /// Which of its rule's limits this is; 0 for a request override.
    pub limit_index: u32,
    /// Who shares the count.
    pub reach: Reach,
    /// The scope in force.
    pub scope: Scope,
    /// The policy that decides when the store of `reach` gives no answer.
    pub on_outage: OnOutage,
    /// What the limit is for: says which requests are shed last when too many wait for a store. `None` counts as comfort.
    pub class: Option<Class>,
    /// Other regions can't be heard: held to this region's part of the limit, which is in the terms.
    pub is_cut_off: bool,
    /// The limit while other regions are heard.
    pub usual_limit: u32,
    /// The identifier leaves the process only as a keyed digest.
    pub is_sensitive: bool,
}

impl<'a> Check<'a> {
    /// One hit on a key that nobody shares, charged with the rest of its request.
    pub fn local(key: Key<'a>, terms: Terms) -> Check<'a> {
        Check {
            key,
            terms,
            hits: 1,
            charging: ChargeMode::Together,
            group: 0,
            limit_index: 0,
            reach: Reach::Process,
            scope: Scope::Local,
            on_outage: OnOutage::Local,
            class: None,
            is_cut_off: false,
            usual_limit: terms.limit,
            is_sensitive: false,
        }
    }

    /// One hit on a key whose limit is held like this, charged with the rest of its request.
    #[inline(always)]
    pub(in crate::engine) fn of(key: Key<'a>, held: &Enforcement) -> Check<'a> {
        let Enforcement { scope, terms, usual_limit, reach, on_outage, class, is_cut_off } = *held;
        Check { reach, scope, on_outage, class, is_cut_off, usual_limit, ..Check::local(key, terms) }
    }

    /// Other regions share the count too.
    pub fn is_global(&self) -> bool {
        self.scope == Scope::Global
    }

    /// The policy that made a verdict because of an outage, if one did.
    #[inline]
    pub fn outage_policy(&self, verdict: &Verdict) -> Option<OnOutage> {
        match verdict.basis {
            Basis::Without(Cause::Outage, policy) => Some(policy),
            Basis::Without(Cause::Overload, _) | Basis::Memory(_) | Basis::Store(_) => {
                self.is_cut_off.then_some(OnOutage::Share)
            }
        }
    }

    /// A counter as this check sees it.
    #[inline(always)]
    pub(in crate::engine) fn view<'v>(&self, counter: &'v mut Counter, part: Option<&'v RegionalPart>) -> View<'v> {
        View { counter, foreign: part.and_then(RegionalPart::foreign), is_cut_off: self.is_cut_off }
    }
}
