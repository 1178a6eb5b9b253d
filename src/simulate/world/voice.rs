//! Carries what the processes of a region tell each other, so that one of them speaks with the table.

use crate::engine::reach::Store;
use crate::global::spoken_cells::CellsRead;
use crate::global::voice::Role;
use crate::regional::call::{Call, Reply};
use crate::regional::redis::cluster_slot::voice_slot;
use crate::regional::voice::VoiceReply;
use crate::simulate::world::event::{Event, Talking, To};
use crate::simulate::world::servers::Server;
use crate::simulate::world::{MONO_START_US, World};

/// How long a process waits for an answer.
const VOICE_TIMEOUT_US: u64 = 500_000;
/// How long a process whose connection broke does not hear the feed.
const DEAF_US: u64 = 1_000_000;

impl World {
    /// The process that speaks for a region; `None` if none does.
    pub fn speaker(&self, region: usize) -> Option<usize> {
        let speaks = |process: &usize| {
            let exchange = self.processes[*process].exchange.as_ref();
            self.region_of(*process) == region && exchange.is_some_and(|exchange| exchange.role() == Role::Speaking)
        };
        (0..self.processes.len()).find(speaks)
    }

    /// Until when something has to wait, because it happens to a process that does nothing about other regions.
    pub(super) fn paused_until_us(&self, event: &Event) -> Option<u64> {
        let to = match event {
            Event::Publish { to }
            | Event::Import { to }
            | Event::RowsAnswered { to, .. }
            | Event::ReadAnswered { to, .. }
            | Event::Voice { to }
            | Event::VoiceAnswered { to, .. }
            | Event::CellsAnswered { to, .. }
            | Event::Feed { to } => to,
            _ => return None,
        };
        self.paused.get(to).copied().filter(|until_us| *until_us > self.now_us)
    }

    /// Plans the next look of a process.
    pub(super) fn plan_voice(&mut self, to: To) {
        let Some(at_us) = self.exchange(to).and_then(|exchange| exchange.voice_at_us()) else { return };
        if at_us == u64::MAX {
            // A call is under way: its end plans the next.
            return;
        }
        let at_us = at_us.saturating_sub(MONO_START_US).max(self.now_us);
        if self.next_voice.get(&to).is_none_or(|planned_us| at_us < *planned_us || *planned_us < self.now_us) {
            self.next_voice.insert(to, at_us);
            self.at(at_us, Event::Voice { to });
        }
    }

    pub(super) fn voice(&mut self, to: To) {
        // Another look was planned instead, unless the process was paused.
        if self.next_voice.get(&to).is_some_and(|planned_us| *planned_us <= self.now_us) {
            self.next_voice.remove(&to);
            self.talk(to, false);
        }
    }

    /// Has a process make the call that is due. A turn of publishing goes on after it.
    pub(super) fn talk(&mut self, to: To, is_turn: bool) {
        let now = self.now(to.process);
        let call = self.exchange(to).and_then(|exchange| exchange.voice_call(is_turn, now));
        let Some(call) = call else {
            if is_turn {
                self.gather(to);
            }
            return self.plan_voice(to);
        };
        let talking = Talking { call, asked_us: self.now_us, is_turn, is_over: false };
        if self.random.permille(self.setup.network.lost_calls) {
            self.give_up_talking(to, talking);
            return;
        }
        let at_us = self.now_us + self.delay_us();
        self.at(at_us, Event::VoiceArrives { from: to, talking });
    }

    /// Has the caller hear, when its time is up, that there is no answer.
    fn give_up_talking(&mut self, to: To, talking: Talking) {
        let at_us = (talking.asked_us + VOICE_TIMEOUT_US).max(self.now_us);
        self.at(at_us, Event::VoiceAnswered { to, talking, reply: None });
    }

    pub(super) fn voice_arrives(&mut self, from: To, mut talking: Talking) {
        let frozen_until_us = self.voice_server(from.process).frozen_until_us;
        if self.now_us < frozen_until_us {
            if !talking.is_over && frozen_until_us > talking.asked_us + VOICE_TIMEOUT_US {
                self.give_up_talking(from, talking.clone());
                talking.is_over = true;
            }
            return self.at(frozen_until_us, Event::VoiceArrives { from, talking });
        }
        let now_ms = self.now_ms();
        let reply = self.voice_server_mut(from.process).origin.speak(&talking.call, now_ms);
        if !talking.call.entries.is_empty() {
            self.spread_the_word(from.process);
        }
        if talking.is_over {
            return;
        }
        if self.random.permille(self.setup.network.lost_replies) {
            return self.give_up_talking(from, talking);
        }
        let at_us = self.now_us + self.delay_us();
        self.at(at_us, Event::VoiceAnswered { to: from, talking, reply: Some(reply) });
    }

    /// Has all processes of a region hear the feed, those later whose connection breaks.
    fn spread_the_word(&mut self, process: usize) {
        for other in self.processes_of(self.region_of(process)) {
            let is_deaf = self.random.permille(self.setup.network.lost_replies);
            let at_us = self.now_us + self.delay_us() + if is_deaf { DEAF_US } else { 0 };
            let to = self.to(other);
            self.at(at_us, Event::Feed { to });
        }
    }

    pub(super) fn voice_answered(&mut self, to: To, talking: &Talking, reply: Option<&VoiceReply>) {
        let now = self.now(to.process);
        let Some(exchange) = self.exchange(to) else { return };
        match reply {
            Some(reply) => exchange.voice_replied(&talking.call, MONO_START_US + talking.asked_us, reply, now),
            None => exchange.voice_failed(&talking.call, false, now),
        }
        if talking.is_turn {
            self.gather(to);
        }
        self.plan_voice(to);
    }

    /// Has the speaker read what it is about to publish.
    fn gather(&mut self, to: To) {
        let now = self.now(to.process);
        let is_cluster = self.setup.is_cluster;
        let reads = self.exchange(to).map(|exchange| exchange.cells_to_read(is_cluster, now)).unwrap_or_default();
        if reads.is_empty() {
            return self.collect(to);
        }
        let sent_us = self.now_us;
        if self.random.permille(self.setup.network.lost_calls) {
            self.at(sent_us + VOICE_TIMEOUT_US, Event::CellsAnswered { to, reads, replies: None });
            return;
        }
        let at_us = sent_us + self.delay_us();
        self.at(at_us, Event::CellsArrive { from: to, reads, sent_us });
    }

    pub(super) fn cells_arrive(&mut self, from: To, reads: Vec<CellsRead>, sent_us: u64) {
        let servers = self.servers(from.process, Store::Origin);
        let is_frozen = |read: &CellsRead| self.now_us < servers.get(servers.of_call(&read.call)).frozen_until_us;
        let (frozen, reads): (Vec<CellsRead>, Vec<CellsRead>) = reads.into_iter().partition(is_frozen);
        let timeout_us = sent_us + VOICE_TIMEOUT_US;
        if frozen.is_empty() && self.random.permille(self.setup.network.lost_replies) {
            self.at(timeout_us, Event::CellsAnswered { to: from, reads, replies: None });
            return;
        }
        let now_ms = self.now_ms();
        let servers = self.servers_mut(from.process, Store::Origin);
        let mut reply = |call: &Call| servers.get_mut(servers.of_call(call)).origin.call(call, now_ms);
        let replies = Some(reads.iter().map(|read| reply(&read.call)).collect());
        // A node that hangs holds up nobody but the turn.
        let at_us = if frozen.is_empty() { self.now_us + self.delay_us() } else { timeout_us };
        self.at(at_us, Event::CellsAnswered { to: from, reads, replies });
    }

    pub(super) fn cells_answered(&mut self, to: To, reads: &[CellsRead], replies: Option<&[Reply]>) {
        let now = self.now(to.process);
        if let Some(exchange) = self.exchange(to) {
            for (read, reply) in reads.iter().zip(replies.into_iter().flatten()) {
                exchange.cells_read(read, reply, now);
            }
            self.collect(to);
        }
    }

    pub(super) fn feed(&mut self, to: To) {
        let home = self.voice_server(to.process);
        if self.now_us < home.frozen_until_us {
            return self.at(home.frozen_until_us, Event::Feed { to });
        }
        let now = self.now(to.process);
        let Some(exchange) = self.exchange(to) else { return };
        for item in home.origin.feed_after(exchange.feed_place()) {
            exchange.hear_feed(item, now);
        }
        self.begin_to_seek(to);
        self.plan_voice(to);
    }

    /// Has a process that stops give up its office.
    pub(super) fn say_farewell(&mut self, to: To) {
        let farewell = self.exchange(to).and_then(|exchange| exchange.leave());
        let now_ms = self.now_ms();
        let home = self.voice_server_mut(to.process);
        if let Some(call) = farewell {
            home.origin.speak(&call, now_ms);
            self.spread_the_word(to.process);
        }
    }

    /// Who has the lease, the mentions and the feed of a process's region.
    fn voice_server(&self, process: usize) -> &Server {
        let servers = self.servers(process, Store::Origin);
        servers.get(servers.of_slot(voice_slot()))
    }

    fn voice_server_mut(&mut self, process: usize) -> &mut Server {
        let servers = self.servers_mut(process, Store::Origin);
        servers.get_mut(servers.of_slot(voice_slot()))
    }
}
