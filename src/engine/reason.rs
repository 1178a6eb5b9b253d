//! Why a request was answered as it was, in one word, and who decided it.

use crate::engine::decide::{Basis, Cause, NewsAge, Store};
use crate::engine::{Decision, LimitStatus, Status, StatusKind};
use crate::rules::policy::{OnOutage, Scope};

/// Why a request was answered as it was, as metrics, logs and answers say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    WithinLimit,
    OverLimit,
    Shadow,
    NoRule,
    /// The store that should have decided gave no answer.
    Outage(OnOutage),
    /// Too many requests waited for that store.
    Overload,
}

impl Reason {
    pub fn word(self) -> &'static str {
        match self {
            Reason::WithinLimit => "within_limit",
            Reason::OverLimit => "over_limit",
            Reason::Shadow => "shadow",
            Reason::NoRule => "no_rule",
            Reason::Outage(OnOutage::Local) => "outage_local",
            Reason::Outage(OnOutage::Share) => "outage_share",
            Reason::Outage(OnOutage::Allow) => "outage_allow",
            Reason::Outage(OnOutage::Deny) => "outage_deny",
            Reason::Overload => "overload",
        }
    }

    /// No count decided, but the policy for an outage or an overload.
    pub fn is_emergency(self) -> bool {
        matches!(self, Reason::Outage(_) | Reason::Overload)
    }
}

/// Who decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// This process, by recent news or of a count that nobody shares.
    Memory,
    /// This process, although it has heard of the key in this window only some time ago.
    MemoryOld,
    /// This process, although it has not heard of the key in this window.
    MemoryCold,
    Origin,
    Owner,
    /// The rule's policy, because its store gave no answer.
    Outage,
    /// The rule's policy, because too many waited for its store.
    Overload,
}

impl DecidedBy {
    pub const ALL: [DecidedBy; 7] = [
        DecidedBy::Memory,
        DecidedBy::MemoryOld,
        DecidedBy::MemoryCold,
        DecidedBy::Origin,
        DecidedBy::Owner,
        DecidedBy::Outage,
        DecidedBy::Overload,
    ];

    pub fn word(self) -> &'static str {
        match self {
            DecidedBy::Memory => "memory",
            DecidedBy::MemoryOld => "memory_old",
            DecidedBy::MemoryCold => "memory_cold",
            DecidedBy::Origin => "origin",
            DecidedBy::Owner => "owner",
            DecidedBy::Outage => "outage",
            DecidedBy::Overload => "overload",
        }
    }

    /// Who decided, in the words of answers to clients: they are not told how current memory was.
    pub fn word_for_clients(self) -> &'static str {
        match self {
            DecidedBy::MemoryOld | DecidedBy::MemoryCold => DecidedBy::Memory.word(),
            by => by.word(),
        }
    }

    fn of(basis: Basis) -> DecidedBy {
        match basis {
            Basis::Memory(NewsAge::Recent) => DecidedBy::Memory,
            Basis::Memory(NewsAge::OfWindow) => DecidedBy::MemoryOld,
            Basis::Memory(NewsAge::None) => DecidedBy::MemoryCold,
            Basis::Store(Store::Origin) => DecidedBy::Origin,
            Basis::Store(Store::Owner) => DecidedBy::Owner,
            Basis::Without(Cause::Outage, _) => DecidedBy::Outage,
            Basis::Without(Cause::Overload, _) => DecidedBy::Overload,
        }
    }
}

impl LimitStatus<'_> {
    /// What decided this limit in the place of its count, if something did.
    pub fn emergency(&self) -> Option<Reason> {
        match self.verdict.basis {
            Basis::Without(Cause::Outage, policy) => Some(Reason::Outage(policy)),
            Basis::Without(Cause::Overload, _) => Some(Reason::Overload),
            Basis::Memory(_) | Basis::Store(_) => self.is_cut_off.then_some(Reason::Outage(OnOutage::Share)),
        }
    }

    pub fn decided_by(&self) -> DecidedBy {
        DecidedBy::of(self.verdict.basis)
    }

    /// The widest scope at which the limit holds at the moment. `is_cut_off`: other regions can't be heard.
    pub fn layer(&self, is_cut_off: bool) -> Scope {
        match (self.scope, self.verdict.basis) {
            (_, Basis::Without(..)) => Scope::Local,
            (Scope::Global, _) if is_cut_off => Scope::Regional,
            (Scope::Split, _) if self.is_alone => Scope::Local,
            (Scope::Split, _) => Scope::Regional,
            (scope, _) => scope,
        }
    }
}

impl Decision<'_> {
    /// The reason of the status that settled the answer.
    pub fn reason(&self) -> Reason {
        let is_shadowed = self.is_globally_shadowed || self.statuses.iter().any(|status| status.is_shadowed);
        let limited = |status: &Status<'_>| match &status.kind {
            StatusKind::Limited(limited) => limited.emergency(),
            StatusKind::Unmatched | StatusKind::Unlimited => None,
        };
        match self.decisive() {
            Some(status) if limited(status).is_some() => limited(status).unwrap_or(Reason::OverLimit),
            _ if self.is_over => Reason::OverLimit,
            _ if is_shadowed => Reason::Shadow,
            Some(_) => Reason::WithinLimit,
            None if self.has_unlimited() => Reason::WithinLimit,
            None => Reason::NoRule,
        }
    }

    fn has_unlimited(&self) -> bool {
        self.statuses.iter().any(|status| matches!(status.kind, StatusKind::Unlimited))
    }

    /// Who decided the request: the farthest decider that any of its limits needed.
    pub fn decided_by(&self) -> DecidedBy {
        let by = |status: &Status<'_>| match &status.kind {
            StatusKind::Limited(limited) => Some(limited.decided_by()),
            StatusKind::Unmatched | StatusKind::Unlimited => None,
        };
        self.statuses.iter().filter_map(by).max_by_key(|by| *by as usize).unwrap_or(DecidedBy::Memory)
    }
}
