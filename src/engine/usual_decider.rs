//! Who decides on the keys of a limit while they are far from it: memory, or a store for every request.
//!
//! A limit that is small for its fleet leaves no process a whole hit of its slack. Then Redis decides every request that
//! memory does not deny, and users wait for it. People should hear of that before they wonder: when they check their rules, and
//! when they ask a running process. All of them ask here.

use std::fmt;

use serde_json::{Value, json};

use crate::engine::headroom::Headroom;
use crate::engine::reach::{Enforcement, Layers, Reach, Store};
use crate::rules::limit::{Limit, Rule};
use crate::rules::policy::Charge;

/// Who decides hits that fit, as far as memory knows, on a key with nothing pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsualDecider {
    /// Memory, without a bound: nobody shares the count, or nobody has to be asked whether hits fit.
    Memory,
    /// Memory, up to the limit's credit: the limit is open.
    MemoryWithin(Headroom),
    /// The origin: the limit is closed.
    Origin(Headroom),
    /// The owner of strict limits, or the origin in its place.
    Owner(Store),
}

impl UsualDecider {
    /// Of a limit that is held like this by so many live processes. `is_exempt`: its hits never ask whether they fit, because
    /// it is in shadow or charges always.
    pub(crate) fn new(held: &Enforcement, is_exempt: bool, live: u32) -> UsualDecider {
        let limit = held.terms.capacity();
        match held.reach {
            // Memory denies everything where the limit is 0.
            Reach::Region { .. } | Reach::Strict(_) if is_exempt || limit == 0 => UsualDecider::Memory,
            Reach::Process => UsualDecider::Memory,
            Reach::Strict(store) => UsualDecider::Owner(store),
            Reach::Region { slack_permille } => {
                let headroom = Headroom { limit, slack_permille, live };
                match headroom.is_open() {
                    true => UsualDecider::MemoryWithin(headroom),
                    false => UsualDecider::Origin(headroom),
                }
            }
        }
    }

    /// Of a limit of the rules, while all is well.
    pub(crate) fn of_limit(rule: &Rule, limit: &Limit, layers: &Layers, live: u32) -> UsualDecider {
        let is_exempt = rule.shadow_mode || limit.charge == Charge::Always;
        UsualDecider::new(&layers.enforce_limit(limit), is_exempt, live)
    }

    /// The headroom of a limit that is closed.
    pub(crate) fn closed(&self) -> Option<Headroom> {
        if let UsualDecider::Origin(headroom) = self { Some(*headroom) } else { None }
    }

    pub(crate) fn to_json(self) -> Value {
        let (by, headroom) = match self {
            UsualDecider::Memory => ("memory", None),
            UsualDecider::MemoryWithin(headroom) => ("memory", Some(headroom)),
            UsualDecider::Origin(headroom) => ("origin", Some(headroom)),
            UsualDecider::Owner(Store::Origin) => ("origin", None),
            UsualDecider::Owner(Store::Owner) => ("owner", None),
        };
        json!({
            "by": by,
            "is_closed": self.closed().is_some(),
            "credit": headroom.map(|headroom| headroom.credit()),
            "processes": headroom.map(|headroom| headroom.live),
            "slack": headroom.map(|headroom| share(headroom.slack_permille)),
            "opening_slack": headroom.and_then(|headroom| headroom.opening_slack_permille()).map(share),
        })
    }
}

/// Thousandths as rule files write them.
pub(crate) fn share(permille: u16) -> f64 {
    f64::from(permille) / 1000.0
}

impl fmt::Display for UsualDecider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsualDecider::Memory => write!(f, "memory"),
            UsualDecider::MemoryWithin(headroom) => {
                write!(f, "memory, up to {} pending a process", headroom.credit())
            }
            UsualDecider::Origin(headroom) => {
                let Headroom { limit, slack_permille, live } = headroom;
                let over = if *live == 1 { "one process".to_owned() } else { format!("{live} processes") };
                match slack_permille {
                    0 => write!(f, "asks Redis: the slack is 0")?,
                    _ => {
                        let percent = f64::from(*slack_permille) / 10.0;
                        write!(f, "asks Redis: slack {percent} % of {limit} over {over} is below one hit")?;
                    }
                }
                match headroom.opening_slack_permille() {
                    Some(permille) => write!(f, "; slack >= {} opens it", share(permille)),
                    None => write!(f, "; no slack opens {limit} over {over}"),
                }
            }
            UsualDecider::Owner(Store::Origin) => write!(f, "asks Redis: strict"),
            UsualDecider::Owner(Store::Owner) => write!(f, "asks the owner: strict"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reach::RegionIndex;
    use crate::rules::limit::Terms;
    use crate::rules::policy::{Algorithm, OnOutage, Policy, Scope};

    const REGION: Layers =
        Layers { is_regional: true, owner: Some(Store::Origin), slack_permille: 100, ..Layers::ALONE };

    fn said(layers: Layers, terms: Terms, scope: Option<Scope>, slack_permille: Option<u16>, live: u32) -> String {
        let policy = Policy { class: None, scope, on_outage: OnOutage::Local, slack_permille };
        UsualDecider::new(&layers.enforce(&terms, Some(&policy), false), false, live).to_string()
    }

    fn per_second(limit: u32) -> Terms {
        Terms { limit, window_ms: 1000, algorithm: Algorithm::SlidingWindow, burst: limit }
    }

    #[test]
    fn a_limit_says_who_decides_and_what_opens_it() {
        let region = |limit, slack, live| said(REGION, per_second(limit), None, slack, live);
        assert_eq!(region(1000, None, 3), "memory, up to 33 pending a process");
        let closed = "asks Redis: slack 10 % of 10 over 3 processes is below one hit; slack >= 0.3 opens it";
        assert_eq!(region(10, None, 3), closed);
        assert_eq!(region(10, Some(300), 3), "memory, up to 1 pending a process");
        assert_eq!(
            region(9, None, 1),
            "asks Redis: slack 10 % of 9 over one process is below one hit; slack >= 0.112 opens it"
        );
        assert_eq!(
            region(2, Some(1000), 3),
            "asks Redis: slack 100 % of 2 over 3 processes is below one hit; no slack opens 2 over 3 processes"
        );
        assert_eq!(region(100, Some(0), 3), "asks Redis: the slack is 0; slack >= 0.03 opens it");
        assert_eq!(region(0, None, 3), "memory", "it denies everything");
    }

    #[test]
    fn scopes_parts_and_bursts_count_as_they_are_held() {
        let three = Layers { place: RegionIndex { region: 2, regions: 3 }, ..REGION };
        let split = |slack| said(three, per_second(100), Some(Scope::Split), slack, 3);
        assert_eq!(split(None), "asks Redis: the slack is 0; slack >= 0.091 opens it", "33 over 3");
        assert_eq!(split(Some(91)), "memory, up to 1 pending a process");
        let strict = |layers| said(layers, per_second(100), Some(Scope::Strict), None, 3);
        assert_eq!(strict(REGION), "asks Redis: strict");
        assert_eq!(strict(Layers { owner: Some(Store::Owner), ..REGION }), "asks the owner: strict");
        assert_eq!(said(REGION, per_second(10), Some(Scope::Local), None, 3), "memory");
        let bucket = Terms { algorithm: Algorithm::Gcra, burst: 60, ..per_second(10) };
        assert_eq!(said(REGION, bucket, None, None, 3), "memory, up to 2 pending a process");
    }

    #[test]
    fn who_never_asks_is_not_closed() {
        let held = REGION.enforce(&per_second(10), None, false);
        assert!(UsualDecider::new(&held, false, 3).closed().is_some());
        assert_eq!(UsualDecider::new(&held, true, 3), UsualDecider::Memory);
    }

    #[test]
    fn programs_get_figures() {
        let held = REGION.enforce(&per_second(10), None, false);
        let json = UsualDecider::new(&held, false, 3).to_json();
        assert_eq!((&json["by"], &json["is_closed"], &json["credit"]), (&json!("origin"), &json!(true), &json!(0)));
        assert_eq!((&json["slack"], &json["opening_slack"], &json["processes"]), (&json!(0.1), &json!(0.3), &json!(3)));
        assert_eq!(UsualDecider::Owner(Store::Owner).to_json()["by"], "owner");
    }
}
