//! Who speaks with MySQL for the region: this process, another one, or each for itself.
//!
//! A lease at the region's Redis names the speaker. Whoever hears nothing in the feed for some seconds asks for the lease. If
//! another process has it and is not heard all the same, or if Redis does not answer, the process does what it can alone:
//! it publishes and imports for itself. It follows again with the first entry that it hears. Two speakers do no harm, nor
//! do several that are alone: rows only grow.

use crate::regional::call::ProcessId;
use crate::regional::voice::LEASE_MS;

/// How often the speaker renews its lease.
const RENEW_US: u64 = 1_000_000;
/// After this long without an entry, and up to as much more as [`JITTER_US`], a process asks for the lease.
const SILENCE_US: u64 = 3_000_000;
const JITTER_US: u64 = 1_000_000;
/// How soon processes ask that know that there is no speaker. Random, so that one is first.
const AT_ONCE_US: u64 = 200_000;
/// How long a speaker that gave up, because it could not reach MySQL, leaves the lease to others.
const RESIGNED_US: u64 = 30_000_000;
/// When to ask again for what Redis refuses this process.
const REFUSED_US: u64 = 60_000_000;

/// What a process does for its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Publishes and imports for itself: nobody is heard.
    #[default]
    Alone,
    /// Leaves that to the speaker, and hears from it what others have counted.
    Following,
    /// Publishes and imports for all.
    Speaking,
}

impl Role {
    pub(crate) const ALL: [Role; 3] = [Role::Alone, Role::Following, Role::Speaking];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Role::Alone => "alone",
            Role::Following => "following",
            Role::Speaking => "speaking",
        }
    }
}

/// A process's knowledge of who speaks.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    me: ProcessId,
    role: Role,
    /// Who speaks, as far as is known.
    speaker: Option<ProcessId>,
    /// When the feed was last heard; of the speaker itself, when it last appended to it.
    heard_us: Option<u64>,
    /// When the lease is asked for the next time, or renewed.
    next_us: u64,
    /// Until when the own lease lasts.
    lease_until_us: u64,
    /// Until when this process does not ask for it.
    barred_until_us: u64,
    random: u64,
}

impl Voice {
    /// Begins as a follower that asks for the lease at once.
    pub(crate) fn new(me: ProcessId, now_us: u64, seed: u64) -> Voice {
        let mut voice = Voice {
            me,
            role: Role::Following,
            speaker: None,
            heard_us: None,
            next_us: 0,
            lease_until_us: 0,
            barred_until_us: 0,
            random: seed | 1,
        };
        voice.next_us = now_us + voice.random_below(AT_ONCE_US);
        voice
    }

    /// A random number, for whatever should not happen in step with others.
    pub(crate) fn random_below(&mut self, below: u64) -> u64 {
        // Xorshift: any bits will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    fn wait_for_silence(&mut self, now_us: u64) {
        self.next_us = now_us + SILENCE_US + self.random_below(JITTER_US);
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn speaker(&self) -> Option<ProcessId> {
        self.speaker
    }

    pub(crate) fn heard_us(&self) -> Option<u64> {
        self.heard_us
    }

    /// When [`Voice::wants_lease`] may next be true, or the role may change.
    pub(crate) fn next_us(&self) -> u64 {
        match self.role {
            Role::Speaking => self.next_us.min(self.lease_until_us),
            Role::Following => self.next_us,
            Role::Alone => self.next_us.max(self.barred_until_us),
        }
    }

    /// Whether to ask for the lease now, or to renew it.
    pub(crate) fn wants_lease(&self, now_us: u64) -> bool {
        now_us >= self.next_us && (self.role == Role::Speaking || now_us >= self.barred_until_us)
    }

    /// Notices what has ended by itself.
    pub(crate) fn pass(&mut self, now_us: u64) {
        match self.role {
            Role::Speaking if now_us >= self.lease_until_us => self.go_alone(),
            // Nobody is heard, and this process has just shown that it can't do better for others.
            Role::Following if now_us >= self.next_us && now_us < self.barred_until_us => self.go_alone(),
            _ => {}
        }
    }

    fn go_alone(&mut self) {
        self.role = Role::Alone;
        self.speaker = None;
    }

    /// The lease is being asked for: not again before there is an answer, or that should have come.
    pub(crate) fn asks(&mut self, now_us: u64) {
        self.next_us = now_us + RENEW_US;
    }

    /// This process has the lease, which it asked for at that time.
    pub(crate) fn holds(&mut self, asked_us: u64) {
        self.role = Role::Speaking;
        self.speaker = Some(self.me);
        self.lease_until_us = asked_us + LEASE_MS * 1000;
        self.next_us = asked_us + RENEW_US;
    }

    /// The speaker has appended to the feed.
    pub(crate) fn was_heard(&mut self, now_us: u64) {
        self.heard_us = Some(now_us);
    }

    /// Another process has the lease, or nobody. `has_asked`: this process wanted it.
    pub(crate) fn is_held_by(&mut self, other: Option<ProcessId>, has_asked: bool, now_us: u64) {
        let was_waiting = self.role == Role::Following && self.speaker == other;
        self.speaker = other;
        match (self.role, other) {
            (Role::Speaking, Some(_)) => {
                self.role = Role::Following;
                self.wait_for_silence(now_us);
            }
            (Role::Speaking, None) => {
                self.role = Role::Following;
                self.next_us = now_us + self.random_below(AT_ONCE_US);
            }
            (_, None) => self.next_us = self.next_us.min(now_us + self.random_below(AT_ONCE_US)),
            // Asked a second time, and not one entry came in between.
            (Role::Following, Some(_)) if has_asked && was_waiting => {
                self.role = Role::Alone;
                self.wait_for_silence(now_us);
            }
            (_, Some(_)) if has_asked => self.wait_for_silence(now_us),
            _ => {}
        }
    }

    /// There was no answer.
    pub(crate) fn failed(&mut self, has_asked: bool, now_us: u64) {
        if has_asked && self.role != Role::Speaking {
            self.go_alone();
            self.next_us = now_us + RENEW_US + self.random_below(JITTER_US);
        }
    }

    /// Redis refuses this process something that it needs for this.
    pub(crate) fn refused(&mut self, now_us: u64) {
        self.go_alone();
        self.barred_until_us = now_us + REFUSED_US;
        self.next_us = self.barred_until_us + self.random_below(JITTER_US);
    }

    /// An entry of another process has come.
    pub(crate) fn heard(&mut self, speaker: ProcessId, is_farewell: bool, now_us: u64) {
        self.heard_us = Some(now_us);
        if self.role == Role::Speaking {
            // From before this process had the lease, or it will soon hear that it has it no more.
            return;
        }
        self.role = Role::Following;
        if is_farewell {
            self.speaker = None;
            self.next_us = now_us + self.random_below(AT_ONCE_US);
        } else {
            self.speaker = Some(speaker);
            self.wait_for_silence(now_us);
        }
    }

    /// Gives the lease up, because others may be able to do what this process can't.
    pub(crate) fn resign(&mut self, now_us: u64) {
        self.role = Role::Following;
        self.speaker = None;
        self.barred_until_us = now_us + RESIGNED_US;
        self.wait_for_silence(now_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ProcessId = ProcessId(1);
    const OTHER: ProcessId = ProcessId(2);
    const SECOND_US: u64 = 1_000_000;

    fn voice() -> Voice {
        Voice::new(ME, 0, 7)
    }

    #[test]
    fn who_gets_the_lease_speaks_for_as_long_as_it_lasts() {
        let mut voice = voice();
        assert!(voice.next_us() < AT_ONCE_US && voice.wants_lease(AT_ONCE_US));
        voice.asks(AT_ONCE_US);
        assert!(!voice.wants_lease(AT_ONCE_US));
        voice.holds(AT_ONCE_US);
        assert_eq!((voice.role(), voice.speaker()), (Role::Speaking, Some(ME)));
        assert!(voice.wants_lease(AT_ONCE_US + RENEW_US));
        voice.failed(true, AT_ONCE_US + RENEW_US);
        voice.pass(AT_ONCE_US + LEASE_MS * 1000 - 1);
        assert_eq!(voice.role(), Role::Speaking, "one renewal that fails does not end it");
        voice.pass(AT_ONCE_US + LEASE_MS * 1000);
        assert_eq!(voice.role(), Role::Alone);
    }

    #[test]
    fn a_speaker_that_falls_silent_is_replaced() {
        let mut voice = voice();
        voice.is_held_by(Some(OTHER), true, 0);
        voice.heard(OTHER, false, SECOND_US);
        assert_eq!((voice.role(), voice.speaker()), (Role::Following, Some(OTHER)));
        assert!(!voice.wants_lease(SECOND_US + SILENCE_US - 1));
        assert!(voice.wants_lease(SECOND_US + SILENCE_US + JITTER_US));
        voice.heard(OTHER, true, 2 * SECOND_US);
        assert!(voice.wants_lease(2 * SECOND_US + AT_ONCE_US), "after a farewell at once");
    }

    #[test]
    fn who_hears_nobody_speaks_for_itself() {
        let mut voice = voice();
        voice.failed(true, 0);
        assert_eq!(voice.role(), Role::Alone, "Redis does not answer");
        voice.heard(OTHER, false, SECOND_US);
        assert_eq!(voice.role(), Role::Following);
        voice.is_held_by(Some(OTHER), true, 5 * SECOND_US);
        assert_eq!(voice.role(), Role::Alone, "the lease is held by somebody who is not heard");
        voice.is_held_by(Some(OTHER), true, 9 * SECOND_US);
        assert_eq!(voice.role(), Role::Alone);
        voice.refused(10 * SECOND_US);
        assert!(!voice.wants_lease(60 * SECOND_US) && voice.next_us() >= 70 * SECOND_US);
    }

    #[test]
    fn who_resigns_leaves_it_to_others_for_a_while() {
        let mut voice = voice();
        voice.holds(0);
        voice.resign(SECOND_US);
        assert_eq!(voice.role(), Role::Following);
        voice.pass(6 * SECOND_US);
        assert_eq!(voice.role(), Role::Alone, "nobody else took it");
        assert!(!voice.wants_lease(30 * SECOND_US) && voice.wants_lease(31 * SECOND_US));
        voice.heard(OTHER, false, 7 * SECOND_US);
        assert_eq!(voice.role(), Role::Following);
    }

    #[test]
    fn a_lease_that_went_to_another_is_gone() {
        let mut voice = voice();
        voice.holds(0);
        voice.is_held_by(Some(OTHER), true, SECOND_US);
        assert_eq!((voice.role(), voice.speaker()), (Role::Following, Some(OTHER)));
        voice.is_held_by(None, false, 2 * SECOND_US);
        assert!(voice.wants_lease(2 * SECOND_US + AT_ONCE_US), "there is no speaker any more");
    }
}
