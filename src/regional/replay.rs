//! What the origin has not heard of: which slots to tell it about, and how many at a time.
//!
//! Slots with pending hits stand in the table's queue; a flush takes them all and makes one message of each, however many
//! requests made it. Nothing is dropped: the hits stay in the slot until the origin has answered, and a slot whose message
//! came back without an answer goes into the queue again.

use crate::engine::table::SlotRef;
use crate::regional::call::Part;

/// Between two flushes.
pub const FLUSH_INTERVAL_US: u64 = 50_000;
/// How long a replay may take before it is made again.
pub const REPLAY_TIMEOUT_US: u64 = 100_000;
/// Keys in one message: so few that the origin is busy with it for well below a millisecond.
pub const PARTS_MAX: usize = 64;
/// Messages under way at most; a flush with more waits for the next.
pub const MESSAGES_MAX: usize = 64;
/// Keys that are told again in one flush after the origin has lost its data: at this pace a million takes half a minute,
/// and the origin has time for others.
pub const HEALED_PER_FLUSH: usize = 2_000;

/// Slots to tell the origin about, with what to tell.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub slots: Vec<SlotRef>,
    pub parts: Vec<Part>,
}

impl Batch {
    pub fn push(&mut self, slot: SlotRef, part: Part) {
        self.slots.push(slot);
        self.parts.push(part);
    }

    /// In messages, each with keys of one Cluster slot if `slot_of` says which.
    pub fn into_messages(self, slot_of: Option<fn(&Part) -> u16>) -> Vec<Batch> {
        let mut messages: Vec<(Option<u16>, Batch)> = Vec::new();
        for (slot, part) in self.slots.into_iter().zip(self.parts) {
            let of = slot_of.map(|slot_of| slot_of(&part));
            let open = match of {
                None => messages.last_mut(),
                Some(_) => messages.iter_mut().rev().find(|(other, _)| *other == of),
            };
            match open {
                Some((_, message)) if message.parts.len() < PARTS_MAX => message.push(slot, part),
                _ => {
                    let mut message = Batch::default();
                    message.push(slot, part);
                    messages.push((of, message));
                }
            }
        }
        messages.into_iter().map(|(_, message)| message).collect()
    }
}
