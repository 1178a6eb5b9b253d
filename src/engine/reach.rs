//! How far a limit reaches here: its scope, reduced to the layers that are configured, and this region's part of it.

use crate::rules::limit::{Limit, Terms};
use crate::rules::policy::{Class, OnOutage, Policy, Scope};

/// Shorter windows stay in their region: other regions would hear of their counts when they are nearly over.
const GLOBAL_WINDOW_MS_MIN: u64 = 10_000;

/// Where counts are shared and decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Store {
    /// The region's own.
    Origin,
    /// The one that all regions ask about strict limits.
    Owner,
}

/// Which of how many regions this is, in the order of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionIndex {
    /// Counts from 0.
    pub region: u32,
    /// How many there are.
    pub regions: u32,
}

impl RegionIndex {
    /// The only region.
    pub const ONLY: RegionIndex = RegionIndex { region: 0, regions: 1 };

    /// This region's part of a number. The first regions share the remainder, so that all parts add up to the number.
    pub fn part(&self, whole: u32) -> u32 {
        let regions = self.regions.max(1);
        whole / regions + u32::from(self.region < whole % regions)
    }

    fn part_of(&self, terms: &Terms) -> Terms {
        Terms { limit: self.part(terms.limit), burst: self.part(terms.burst), ..*terms }
    }
}

/// Who shares the count of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Process,
    Region {
        /// Thousandths of the limit that may be admitted before the origin knows.
        slack_permille: u16,
    },
    /// Memory admits nothing: the store decides every request.
    Strict(Store),
}

impl Reach {
    pub fn store(self) -> Option<Store> {
        match self {
            Reach::Process => None,
            Reach::Region { .. } => Some(Store::Origin),
            Reach::Strict(store) => Some(store),
        }
    }
}

/// The layers that are configured: whom this process shares counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// There is an origin.
    pub is_regional: bool,
    /// Counts are exchanged with other regions.
    pub is_global: bool,
    /// Who decides strict limits. `None`: they hold within the process.
    pub owner: Option<Store>,
    /// Which region this is.
    pub place: RegionIndex,
    /// Thousandths of a limit that may be admitted before the origin knows, for limits that do not choose their own.
    pub slack_permille: u16,
}

/// How a limit is held here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enforcement {
    /// The scope in force.
    pub scope: Scope,
    /// With this region's part of the limit, if only that is given out.
    pub terms: Terms,
    /// The limit while other regions are heard.
    pub usual_limit: u32,
    /// Who shares the count.
    pub reach: Reach,
    /// The rule's policy for when the store gives no answer; `local` for an override that stands in for no limit.
    pub on_outage: OnOutage,
    /// `None` if the limit has no class.
    pub class: Option<Class>,
    /// Other regions can't be heard and `on_outage` is `share`, so only this region's part of the limit is given out.
    pub is_cut_off: bool,
}

impl Layers {
    /// One process that shares nothing.
    pub const ALONE: Layers =
        Layers { is_regional: false, is_global: false, owner: None, place: RegionIndex::ONLY, slack_permille: 0 };

    /// The scope in force for a limit that wants this one.
    pub fn scope(&self, wanted: Option<Scope>, terms: &Terms) -> Scope {
        let region = if self.is_regional { Scope::Regional } else { Scope::Local };
        match wanted {
            Some(Scope::Local) => Scope::Local,
            Some(Scope::Strict) if self.owner.is_some() => Scope::Strict,
            // Without an owner it is exact within the process.
            Some(Scope::Strict) => Scope::Local,
            Some(Scope::Split) if self.place.regions > 1 => Scope::Split,
            Some(Scope::Regional | Scope::Split) => region,
            None | Some(Scope::Global) => {
                let is_shared =
                    self.is_global && terms.algorithm.is_windowed() && terms.window_ms >= GLOBAL_WINDOW_MS_MIN;
                if is_shared { Scope::Global } else { region }
            }
        }
    }

    /// How to hold a limit, or an override that stands in for it. `is_cut_off`: other regions can't be heard.
    pub fn enforce(&self, terms: &Terms, policy: Option<&Policy>, is_cut_off: bool) -> Enforcement {
        let scope = self.scope(policy.and_then(|policy| policy.scope), terms);
        let on_outage = policy.map_or(OnOutage::Local, |policy| policy.on_outage);
        let is_cut_off = is_cut_off && scope == Scope::Global && on_outage == OnOutage::Share;
        let reach = match scope {
            Scope::Local => Reach::Process,
            Scope::Strict => self.owner.map_or(Reach::Process, Reach::Strict),
            Scope::Regional | Scope::Global | Scope::Split if self.is_regional => {
                let own = policy.and_then(Policy::slack_permille);
                Reach::Region { slack_permille: own.unwrap_or(self.slack_permille) }
            }
            Scope::Regional | Scope::Global | Scope::Split => Reach::Process,
        };
        let part = || self.place.part_of(terms);
        let usual = if scope == Scope::Split { part() } else { *terms };
        let terms = if is_cut_off { part() } else { usual };
        let class = policy.and_then(|policy| policy.class);
        Enforcement { scope, terms, usual_limit: usual.limit, reach, on_outage, class, is_cut_off }
    }

    /// How to hold a limit of the rules while all is well.
    pub fn enforce_limit(&self, limit: &Limit) -> Enforcement {
        self.enforce(&limit.terms, Some(&limit.policy), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::policy::Algorithm;

    fn terms(limit: u32, window_ms: u64, algorithm: Algorithm) -> Terms {
        Terms { limit, window_ms, algorithm, burst: limit }
    }

    #[test]
    fn the_parts_of_all_regions_add_up() {
        for regions in 1..=7 {
            for whole in 0..50 {
                let parts = (0..regions).map(|region| RegionIndex { region, regions }.part(whole));
                let parts: Vec<u32> = parts.collect();
                assert_eq!(parts.iter().sum::<u32>(), whole);
                assert!(parts.is_sorted_by(|a, b| a >= b) && parts[0] - parts[parts.len() - 1] <= 1, "{parts:?}");
            }
        }
    }

    #[test]
    fn a_scope_comes_to_what_is_configured() {
        let regional = Layers { is_regional: true, ..Layers::ALONE };
        let global = Layers { is_global: true, place: RegionIndex { region: 1, regions: 3 }, ..regional };
        let strict = Layers { owner: Some(Store::Owner), ..global };
        let minute = terms(10, 60_000, Algorithm::SlidingWindow);
        let scopes = |layers: Layers| {
            [None, Some(Scope::Global), Some(Scope::Split), Some(Scope::Strict)]
                .map(|wanted| layers.scope(wanted, &minute))
        };
        use Scope::{Global, Local, Regional, Split, Strict};
        assert_eq!(scopes(Layers::ALONE), [Local; 4]);
        assert_eq!(scopes(regional), [Regional, Regional, Regional, Local]);
        assert_eq!(scopes(global), [Global, Global, Split, Local]);
        assert_eq!(scopes(strict), [Global, Global, Split, Strict]);
        assert_eq!(global.scope(None, &terms(10, 5000, Algorithm::SlidingWindow)), Regional);
        assert_eq!(global.scope(None, &terms(10, 60_000, Algorithm::Gcra)), Regional);
        assert_eq!(strict.scope(Some(Local), &minute), Local);
    }

    #[test]
    fn only_a_share_is_held_to_its_part_when_cut_off() {
        let layers = Layers {
            is_regional: true,
            is_global: true,
            place: RegionIndex { region: 2, regions: 3 },
            ..Layers::ALONE
        };
        let minute = terms(10, 60_000, Algorithm::SlidingWindow);
        let limit = |scope, on_outage, is_cut_off| {
            let policy = Policy { class: None, scope, on_outage, slack_permille: None };
            layers.enforce(&minute, Some(&policy), is_cut_off).terms.limit
        };
        assert_eq!(limit(None, OnOutage::Local, true), 10);
        assert_eq!((limit(None, OnOutage::Share, false), limit(None, OnOutage::Share, true)), (10, 3));
        assert_eq!(limit(Some(Scope::Regional), OnOutage::Share, true), 10);
        assert_eq!(limit(Some(Scope::Split), OnOutage::Local, false), 3);
    }
}
