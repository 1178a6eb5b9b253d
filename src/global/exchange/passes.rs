//! What is read beside what changes, and when: everything that the table holds, or all rows of some rules.
//!
//! A pass goes through the table from its first cell to its last, in as many parts as it takes. A server may not get through
//! a large table in the time that a reading has: the next part then begins at the cell where the last one ended. Between
//! parts, readings follow what changes, so that the pass gets to its end and nobody falls behind. All parts together have
//! read every row that was there when the first began: rows stay in their place, and rows that were added behind the reading
//! are among what changes.
//!
//! A pass costs the server as much as the table is large, and what calls for one calls many processes in the same second: new
//! rules, a server that was away. So each process begins at a moment of its own, up to [`SPREAD_US`] later. Nobody waits for
//! that: keys that are asked for meanwhile are looked up by name ([`lookup_turn`](crate::global::exchange::lookup_turn)).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::global::import::ReadScope;
use crate::global::row::{CellName, RuleName};

/// The time between passes through everything, and up to a fifth more: they repair what was missed, whatever has changed.
const INTERVAL_US: u64 = 600_000_000;
/// The pause between parts, so that there is time to follow what changes.
const PART_PAUSE_US: u64 = 30_000_000;
/// Within this time processes begin a pass that many of them need at once.
pub(super) const SPREAD_US: u64 = 30_000_000;
/// Rules that a pass reads by name. If more are unread, everything is read.
pub(super) const RULES_MAX: usize = 128;

/// A pass that is under way.
#[derive(Clone, Debug, Default)]
struct Pass {
    /// The rules that it reads, sorted; `None`: everything.
    rules: Option<Arc<[RuleName]>>,
    /// Where the next part begins; `None`: at the start.
    from: Option<CellName>,
    /// When the next part is due.
    next_us: u64,
}

/// How a pass has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PassEnd {
    /// It was a pass through everything.
    pub is_of_everything: bool,
    /// Nothing else is unread.
    pub is_all_read: bool,
}

/// A process's passes.
#[derive(Debug)]
pub(super) struct Passes {
    /// When everything is read the next time.
    full_at_us: u64,
    /// That reading is no mere repair: until then, counts may be missing.
    is_full_wanted: bool,
    /// Rules of which rows were left out until now.
    unread: BTreeSet<RuleName>,
    /// When these are read.
    unread_at_us: u64,
    pass: Option<Pass>,
    random: u64,
}

impl Passes {
    /// Everything is read at once: a process that starts knows nothing.
    pub(super) fn new(seed: u64) -> Passes {
        Passes {
            full_at_us: 0,
            is_full_wanted: true,
            unread: BTreeSet::new(),
            unread_at_us: 0,
            pass: None,
            random: seed | 1,
        }
    }

    fn below(&mut self, bound_us: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % bound_us
    }

    /// Has everything read at the next turn, from the start: what was read so far may not be what there is.
    pub(super) fn read_anew(&mut self) {
        self.full_at_us = 0;
        self.is_full_wanted = true;
        self.pass = None;
    }

    /// Has everything read soon, from the start, at a moment of this process's own.
    pub(super) fn read_all_soon(&mut self, now_us: u64) {
        let at_us = now_us + self.below(SPREAD_US);
        self.full_at_us = self.full_at_us.min(at_us);
        self.is_full_wanted = true;
        self.pass = None;
    }

    /// Has the rows of these rules read soon, which have become known, and no longer those of rules that are gone.
    pub(super) fn rules_changed(&mut self, new: Vec<RuleName>, is_known: impl Fn(&RuleName) -> bool, now_us: u64) {
        self.unread.retain(is_known);
        if new.is_empty() {
            return;
        }
        self.unread.extend(new);
        if self.unread.len() > RULES_MAX {
            // The reading hears the rows of these, too.
            self.unread.clear();
            return self.read_all_soon(now_us);
        }
        // Rules that go and come again do not put it off.
        if self.unread_at_us <= now_us {
            self.unread_at_us = now_us + self.below(SPREAD_US);
        }
    }

    /// Whether something is unread, so that counts may be missing.
    pub(super) fn is_any_unread(&self) -> bool {
        self.is_full_wanted || !self.unread.is_empty() || self.pass.is_some()
    }

    /// Whether anything is to be read now beside what changes.
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        let is_through_everything = self.pass.as_ref().is_some_and(|pass| pass.rules.is_none());
        let is_of_rules = self.pass.is_none() && !self.unread.is_empty() && now_us >= self.unread_at_us;
        let is_going_on = self.pass.as_ref().is_some_and(|pass| now_us >= pass.next_us);
        is_of_rules || is_going_on || (now_us >= self.full_at_us && !is_through_everything)
    }

    /// Leaves the next repair to the region's speaker, which hands on what it finds.
    pub(super) fn leave_repair(&mut self, now_us: u64) {
        if !self.is_full_wanted {
            self.full_at_us = self.full_at_us.max(now_us + INTERVAL_US);
        }
    }

    /// What is to be read now beside what changes.
    pub(super) fn next_part(&mut self, now_us: u64) -> Option<ReadScope> {
        let is_through_everything = self.pass.as_ref().is_some_and(|pass| pass.rules.is_none());
        if now_us >= self.full_at_us && !is_through_everything {
            // Set before the pass, so that whoever asks for another one meanwhile gets it.
            self.full_at_us = now_us + INTERVAL_US + self.below(INTERVAL_US / 5);
            self.is_full_wanted = false;
            self.unread.clear();
            self.pass = Some(Pass::default());
        } else if self.pass.is_none() && !self.unread.is_empty() && now_us >= self.unread_at_us {
            let rules = std::mem::take(&mut self.unread).into_iter().collect();
            self.pass = Some(Pass { rules: Some(rules), ..Pass::default() });
        }
        let pass = self.pass.as_ref().filter(|pass| now_us >= pass.next_us)?;
        let from = pass.from.clone();
        Some(match &pass.rules {
            Some(names) => ReadScope::Rules { names: names.clone(), from },
            None => ReadScope::All { from },
        })
    }

    /// Ends a part before the end of the table, at the cell that it reached, of which there may be more rows.
    pub(super) fn part_ended(&mut self, reached: Option<CellName>, now_us: u64) {
        if let Some(pass) = &mut self.pass {
            pass.from = reached.or(pass.from.take());
            pass.next_us = now_us + PART_PAUSE_US;
        }
    }

    /// Ends a part that heard nothing: it is tried again at a moment of this process's own, because others have failed too.
    pub(super) fn part_failed(&mut self, now_us: u64) {
        let next_us = now_us + self.below(SPREAD_US);
        if let Some(pass) = &mut self.pass {
            pass.next_us = next_us;
        }
    }

    /// Ends a pass at the end of the table. `None` if it was given up meanwhile: then another one follows.
    pub(super) fn ended(&mut self) -> Option<PassEnd> {
        let pass = self.pass.take()?;
        Some(PassEnd { is_of_everything: pass.rules.is_none(), is_all_read: !self.is_any_unread() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::Random;

    const SECOND_US: u64 = 1_000_000;

    fn rule(number: usize) -> RuleName {
        RuleName { workspace: (*b"d").into(), namespace: format!("{number:03}").into_bytes().into() }
    }

    /// Runs a process until it reads something, second by second, and says when and what that is.
    fn next(passes: &mut Passes, from_us: u64) -> (u64, ReadScope) {
        let mut seconds = (0..).map(|second| from_us + second * SECOND_US);
        seconds.find_map(|now_us| passes.next_part(now_us).map(|part| (now_us, part))).expect("there is another repair")
    }

    /// A process that has read everything.
    fn settled(seed: u64) -> Passes {
        let mut passes = Passes::new(seed);
        assert_eq!(passes.next_part(0), Some(ReadScope::All { from: None }));
        assert_eq!(passes.ended(), Some(PassEnd { is_of_everything: true, is_all_read: true }));
        passes
    }

    #[test]
    fn processes_that_need_a_pass_in_the_same_second_begin_at_different_ones() {
        let mut of_rules = [0; 40];
        let mut of_everything = [0; 40];
        let mut seeds = Random::new(7);
        for _ in 0..1000 {
            let mut passes = settled(seeds.number());
            passes.rules_changed(vec![rule(1)], |_| true, SECOND_US);
            let (at_us, part) = next(&mut passes, SECOND_US);
            assert_eq!(part, ReadScope::Rules { names: [rule(1)].into(), from: None });
            of_rules[(at_us / SECOND_US) as usize] += 1;
            assert_eq!(passes.ended(), Some(PassEnd { is_of_everything: false, is_all_read: true }));
            passes.read_all_soon(SECOND_US);
            let (at_us, part) = next(&mut passes, SECOND_US);
            assert_eq!(part, ReadScope::All { from: None });
            of_everything[(at_us / SECOND_US) as usize] += 1;
        }
        for at in [of_rules, of_everything] {
            assert!(at.iter().all(|count| *count < 70), "33 on average: {at:?}");
        }
    }

    #[test]
    fn rules_that_come_and_go_are_read_once_and_not_put_off() {
        let due_us = |is_toggled: bool| {
            let mut passes = settled(7);
            passes.rules_changed(vec![rule(1)], |_| true, SECOND_US);
            for _ in 0..5 * usize::from(is_toggled) {
                passes.rules_changed(Vec::new(), |_| false, SECOND_US);
                passes.rules_changed(vec![rule(1)], |_| true, SECOND_US);
            }
            let (at_us, part) = next(&mut passes, SECOND_US);
            assert_eq!(part, ReadScope::Rules { names: [rule(1)].into(), from: None });
            assert!(passes.ended().is_some() && !passes.is_any_unread());
            assert!(next(&mut passes, at_us).0 >= INTERVAL_US, "it was read, and is not again");
            at_us
        };
        assert_eq!(due_us(true), due_us(false));
    }

    #[test]
    fn rules_that_are_gone_before_they_are_read_are_not_read() {
        let mut passes = settled(7);
        passes.rules_changed(vec![rule(1), rule(2)], |_| true, SECOND_US);
        passes.rules_changed(Vec::new(), |name| *name == rule(2), SECOND_US);
        assert_eq!(next(&mut passes, SECOND_US).1, ReadScope::Rules { names: [rule(2)].into(), from: None });
        passes.ended();
        passes.rules_changed(vec![rule(1)], |_| true, SECOND_US);
        assert!(passes.is_any_unread());
        passes.rules_changed(Vec::new(), |_| false, SECOND_US);
        assert!(!passes.is_any_unread());
    }

    #[test]
    fn many_new_rules_have_everything_read_once() {
        let mut passes = settled(7);
        passes.rules_changed((0..=RULES_MAX).map(rule).collect(), |_| true, SECOND_US);
        let (at_us, part) = next(&mut passes, SECOND_US);
        assert_eq!(part, ReadScope::All { from: None });
        assert!(at_us <= SECOND_US + SPREAD_US);
        assert_eq!(passes.ended(), Some(PassEnd { is_of_everything: true, is_all_read: true }));
        assert!(next(&mut passes, at_us).0 >= at_us + INTERVAL_US);
    }

    #[test]
    fn a_pass_through_everything_takes_the_place_of_one_of_rules() {
        let mut passes = settled(7);
        passes.rules_changed(vec![rule(1)], |_| true, SECOND_US);
        let (at_us, _) = next(&mut passes, SECOND_US);
        passes.part_ended(None, at_us);
        passes.read_anew();
        assert_eq!(passes.next_part(at_us), Some(ReadScope::All { from: None }));
        // What becomes known meanwhile is read after it.
        passes.rules_changed(vec![rule(2)], |_| true, at_us);
        assert_eq!(passes.ended(), Some(PassEnd { is_of_everything: true, is_all_read: false }));
        assert_eq!(next(&mut passes, at_us).1, ReadScope::Rules { names: [rule(2)].into(), from: None });
    }
}
