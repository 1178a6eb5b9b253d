//! Speaks for the region, and decides with the other processes who does.
//!
//! The driver and the simulator make the calls that [`Exchange::voice_call`] returns, one at a time, and end each with
//! [`Exchange::voice_replied`] or [`Exchange::voice_failed`].

use std::mem;
use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::global::exchange::region_voice::MENTION_US;
use crate::global::exchange::{Exchange, ExchangeState};
use crate::global::feed::{Covered, FeedEntry};
use crate::global::import::CellSum;
use crate::global::mentions::Mention;
use crate::global::spoken_cells::CellsRead;
use crate::global::voice::Role;
use crate::regional::call::Reply;
use crate::regional::voice::{FeedPlace, LeaseWish, VoiceCall, VoiceReply};

/// Entries of one call.
const CALL_ENTRIES: usize = 8;
/// Mentions of one call.
const CALL_MENTIONS: usize = 512;
/// How many keys are looked at for one call: the others come next.
const CALL_KEYS: usize = 4_096;

impl ExchangeState {
    /// Puts into the outbox what a reading has heard, as far as others have not.
    pub(super) fn hand_on(
        &mut self,
        mut sums: Vec<CellSum>,
        seen: Vec<(Box<str>, u64)>,
        covered: Option<Covered>,
        now: Now,
    ) {
        let sign = self.sign_of_life(now);
        let Some(voice) = self.voice.as_mut().filter(|voice| voice.lease.role() == Role::Speaking) else { return };
        sums.retain(|sum| voice.recent.note(sum, now.mono_us));
        let is_doubtful = voice.is_doubtful;
        if voice.send(FeedEntry { is_doubtful, seen, covered, sums, ..sign }.into_parts()) {
            voice.is_doubtful = false;
        }
    }

    /// An entry that hands nothing on.
    fn sign_of_life(&self, now: Now) -> FeedEntry {
        let ago_ms = |at_us: u64| now.mono_us.saturating_sub(at_us) / 1000;
        FeedEntry {
            is_stuck: self.publishing.is_open(),
            published_ago_ms: self.published_us.map(ago_ms),
            ..FeedEntry::default()
        }
    }
}

impl Exchange {
    /// When to ask [`Exchange::voice_call`] again; `None` if the region has no Redis.
    pub fn voice_at_us(&self) -> Option<u64> {
        let state = self.state.lock();
        let voice = state.voice.as_ref()?;
        let more_us = match voice.lease.role() {
            _ if voice.is_talking => return Some(u64::MAX),
            _ if voice.gives_up => 0,
            Role::Alone => u64::MAX,
            Role::Following => voice.mention_at_us,
            Role::Speaking => voice.sends_at_us(),
        };
        Some(more_us.min(voice.lease.next_us()))
    }

    /// What to tell the other processes of the region now; `None` if there is nothing, or a call is under way.
    /// `is_turn`: a turn of publishing begins, for which the speaker wants to know what others have mentioned.
    pub(crate) fn voice_call(&self, is_turn: bool, now: Now) -> Option<VoiceCall> {
        let mut state = self.state.lock();
        let process = self.options.process?;
        let was_speaking = state.role() == Role::Speaking;
        state.voice.as_mut()?.lease.pass(now.mono_us);
        if was_speaking && state.role() != Role::Speaking {
            self.fall_silent(&mut state);
        }
        let sign = state.sign_of_life(now);
        let voice = state.voice.as_mut().filter(|voice| !voice.is_talking)?;
        let mut call = VoiceCall { process, lease: LeaseWish::Nothing, mentions: Vec::new(), entries: Vec::new() };
        if mem::take(&mut voice.gives_up) {
            voice.is_talking = true;
            call.lease = LeaseWish::GiveUp;
            call.entries.push(FeedEntry { is_farewell: true, ..sign }.encode());
            return Some(call);
        }
        let role = voice.lease.role();
        let mut wants_lease = voice.lease.wants_lease(now.mono_us);
        match role {
            Role::Speaking => {
                voice.live(|| sign, now);
                call.entries = voice.outbox.iter().take(CALL_ENTRIES).cloned().collect();
                // Whatever it says renews its lease.
                wants_lease |= is_turn || !call.entries.is_empty();
            }
            Role::Following if now.mono_us >= voice.mention_at_us => {
                voice.mention_at_us = now.mono_us + MENTION_US;
                call.mentions = self.mentions(&mut state, now);
            }
            Role::Alone | Role::Following => {}
        }
        let voice = state.voice.as_mut()?;
        if wants_lease {
            voice.lease.asks(now.mono_us);
            call.lease = LeaseWish::Hold;
        }
        voice.is_talking = wants_lease || !call.mentions.is_empty();
        voice.is_talking.then_some(call)
    }

    /// What the speaker should know of. The keys go on waiting until the table has what they know.
    fn mentions(&self, state: &mut ExchangeState, now: Now) -> Vec<Vec<u8>> {
        let names = self.names.read().clone();
        let (mut mentions, mut cells) = (Vec::new(), Vec::new());
        self.ledger().sweep_noted();
        for key in self.ledger().publishable(now.wall_ms).take(CALL_KEYS) {
            for mention in self.mentions_of(&key, &names, state, now) {
                let is_left = state.voice.as_ref().is_none_or(|it| it.spoken_for.has(&mention.cell, now.mono_us));
                if !is_left && mentions.len() < CALL_MENTIONS {
                    mentions.push(mention.encode());
                    cells.push(mention.cell);
                }
            }
            self.ledger().note(key.at);
        }
        if let Some(voice) = &mut state.voice {
            voice.mentioning = cells;
        }
        mentions
    }

    /// Ends a call that was answered. `asked_us`: when it was made.
    pub(crate) fn voice_replied(&self, call: &VoiceCall, asked_us: u64, reply: &VoiceReply, now: Now) {
        let mut state = self.state.lock();
        let was_speaking = state.role() == Role::Speaking;
        let Some(voice) = &mut state.voice else { return };
        voice.is_talking = false;
        let cells = mem::take(&mut voice.mentioning);
        let has_asked = call.lease == LeaseWish::Hold;
        if call.lease == LeaseWish::GiveUp || voice.gives_up {
            // Whatever the lease is, the next call gives it up.
            return;
        }
        if reply.speaker != Some(call.process) {
            voice.lease.is_held_by(reply.speaker, has_asked, now.mono_us);
            if voice.lease.role() == Role::Alone {
                // Perhaps the feed was made anew by a clock that is behind: it is heard from its start.
                voice.feed_place = FeedPlace::default();
            }
            self.counts.mentions_made.fetch_add(reply.mentioned as u64, Ordering::Relaxed);
            cells.into_iter().take(reply.mentioned).for_each(|cell| voice.spoken_for.leave(cell, now.mono_us));
            if was_speaking {
                self.fall_silent(&mut state);
            }
            return;
        }
        if was_speaking && !call.entries.is_empty() {
            let sent = voice.outbox.drain(..call.entries.len().min(voice.outbox.len()));
            self.counts.handed_on[1].fetch_add(sent.map(|body| body.len() as u64).sum(), Ordering::Relaxed);
            self.counts.handed_on[0].fetch_add(call.entries.len() as u64, Ordering::Relaxed);
            voice.appended_us = now.mono_us;
            voice.lease.was_heard(now.mono_us);
        }
        if has_asked {
            voice.lease.holds(asked_us);
            if !was_speaking {
                voice.spoken_for.clear();
                (voice.lacks_at_us, voice.appended_us) = (None, 0);
                state.importing.hasten(now.mono_us);
                state.publishing.hasten(now.mono_us);
            }
        }
        self.hear_mentions(&mut state, &reply.mentions, now);
    }

    /// Ends a call that had no answer. `is_refused`: Redis does not do what it is asked.
    pub(crate) fn voice_failed(&self, call: &VoiceCall, is_refused: bool, now: Now) {
        let mut state = self.state.lock();
        let was_speaking = state.role() == Role::Speaking;
        let Some(voice) = &mut state.voice else { return };
        voice.is_talking = false;
        match is_refused {
            true => voice.lease.refused(now.mono_us),
            false => voice.lease.failed(call.lease == LeaseWish::Hold, now.mono_us),
        }
        if was_speaking && state.role() != Role::Speaking {
            self.fall_silent(&mut state);
        }
    }

    fn hear_mentions(&self, state: &mut ExchangeState, mentions: &[Vec<u8>], now: Now) {
        let Some(voice) = &mut state.voice else { return };
        for bytes in mentions {
            let Some(mut mention) = Mention::decode(bytes) else {
                self.counts.malformed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            self.counts.mentions_heard.fetch_add(1, Ordering::Relaxed);
            // Others may not have heard yet what was published just now.
            mention.told = mention.told.max(voice.recent.row(&mention.cell));
            voice.spoken.follow(mention, None, now.mono_us);
        }
    }

    /// What the speaker reads at the origin before it publishes: nothing unless this process speaks.
    pub(crate) fn cells_to_read(&self, is_cluster: bool, now: Now) -> Vec<CellsRead> {
        let mut state = self.state.lock();
        let Some(process) = self.options.process.filter(|_| state.role() == Role::Speaking) else { return Vec::new() };
        let names = self.names.read().clone();
        let server_ms = state.followed.server_ms(now);
        self.ledger().sweep_noted();
        for key in self.ledger().publishable(now.wall_ms) {
            let mentions = self.mentions_of(&key, &names, &state, now);
            let Some(voice) = &mut state.voice else { break };
            let is_room = mentions.into_iter().all(|mention| voice.spoken.follow(mention, Some(key.at), now.mono_us));
            if !is_room {
                self.ledger().note(key.at);
            }
        }
        let Some(voice) = &mut state.voice else { return Vec::new() };
        // By the clock of the server: a wrong one here must not end what all others count.
        let wall_ms = server_ms.unwrap_or(now.wall_ms);
        voice.spoken.expire(self.regions(), Now { wall_ms, ..now });
        voice.spoken.reads(process, self.regions(), is_cluster)
    }

    /// Takes over what the origin holds of cells that this process publishes for others.
    pub(crate) fn cells_read(&self, read: &CellsRead, reply: &Reply, now: Now) {
        if let Some(voice) = &mut self.state.lock().voice {
            voice.spoken.read(read, reply, now.mono_us);
        }
    }

    /// Ends this process's office, whoever has it now.
    fn fall_silent(&self, state: &mut ExchangeState) {
        let Some(voice) = &mut state.voice else { return };
        voice.outbox.clear();
        voice.recent.clear();
        // What was not published is told to the next speaker.
        voice.spoken.clear().into_iter().for_each(|at| self.ledger().note(at));
    }

    /// Gives the lease up, if this process has it, because it does not reach MySQL.
    pub(super) fn resign(&self, state: &mut ExchangeState, now: Now) {
        if state.role() == Role::Speaking {
            self.fall_silent(state);
            if let Some(voice) = &mut state.voice {
                voice.gives_up = true;
                voice.lease.resign(now.mono_us);
            }
        }
    }

    /// Begins a clean stop: from here on the process publishes for itself what is left, and speaks only to give the lease up.
    pub(crate) fn leave(&self) -> Option<VoiceCall> {
        let mut state = self.state.lock();
        let process = self.options.process?;
        let was_speaking = state.role() == Role::Speaking;
        let sign = state.sign_of_life(Now::default());
        self.fall_silent(&mut state);
        state.voice = None;
        let entries = vec![FeedEntry { is_farewell: true, ..sign }.encode()];
        was_speaking.then_some(VoiceCall { process, lease: LeaseWish::GiveUp, mentions: Vec::new(), entries })
    }
}
