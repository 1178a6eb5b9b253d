//! The quota rule: a group that is over denies its request, but quota groups deny only together. One quota group that is not
//! over is enough to let the request pass; those that are over are then not charged.

/// Whether a request is denied, from its groups one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaRule {
    /// A group that denies by itself is over.
    is_over_alone: bool,
    has_quota: bool,
    /// A quota group is not over.
    has_free_quota: bool,
}

impl QuotaRule {
    /// Takes for each group of a request whether it is a quota group, and whether it is over.
    #[inline]
    pub(crate) fn of(groups: impl IntoIterator<Item = (bool, bool)>) -> QuotaRule {
        let mut rule = QuotaRule::default();
        groups.into_iter().for_each(|(is_quota, is_over)| rule.add(is_quota, is_over));
        rule
    }

    #[inline]
    pub(crate) fn add(&mut self, is_quota: bool, is_over: bool) {
        self.is_over_alone |= !is_quota && is_over;
        self.has_quota |= is_quota;
        self.has_free_quota |= is_quota && !is_over;
    }

    #[inline]
    pub(crate) fn denies(&self) -> bool {
        self.is_over_alone || self.do_quotas_deny()
    }

    /// There are quota groups, and all of them are over.
    #[inline]
    pub(crate) fn do_quotas_deny(&self) -> bool {
        self.has_quota && !self.has_free_quota
    }

    /// Whether an admitted request charges a group: all but the quota groups that are over.
    #[inline]
    pub(crate) fn charges(is_quota: bool, is_over: bool) -> bool {
        !is_quota || !is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_groups_deny_only_together() {
        let denies = |groups: &[(bool, bool)]| QuotaRule::of(groups.iter().copied()).denies();
        assert!(!denies(&[]));
        assert!(denies(&[(false, true)]) && denies(&[(false, false), (false, true)]));
        assert!(!denies(&[(false, false)]));
        assert!(denies(&[(true, true)]) && denies(&[(true, true), (true, true)]));
        assert!(!denies(&[(true, true), (true, false)]), "one that is free is enough");
        assert!(denies(&[(true, false), (false, true)]), "others deny whatever quotas say");
        assert!(denies(&[(false, false), (true, true)]), "others do not make up for quotas");
    }
}
