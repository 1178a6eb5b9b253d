//! What the origin has not heard of: which keys to tell it about, and how many at a time.
//!
//! Slots with pending hits stand in the table's queue. A flush tells each once, however many requests made it pending, message
//! by message as the [`SendWindow`](crate::regional::send_window::SendWindow) lets them go; a Cluster is told slot by slot, see
//! [`tag_queue`](crate::regional::tag_queue). Nothing is dropped: the hits stay in the slot until the origin has
//! answered, and a slot whose message had no answer goes into the queue again.

use crate::engine::table::SlotRef;
use crate::engine::table::farewell::Farewell;
use crate::regional::call::{CallKey, OriginKey};

/// The time between two flushes.
pub(crate) const FLUSH_INTERVAL_US: u64 = 50_000;
/// How long a replay may take before the origin counts as silent.
pub(crate) const REPLAY_TIMEOUT_US: u64 = 100_000;
/// How long a replay is awaited that had no answer in its time: while it may still arrive, nothing of it is told again. Then its
/// connection is closed.
pub(crate) const REPLAY_AWAITED_US: u64 = 5_000_000;
/// Cells in one message, at most, but for the last key: an exact window has seventeen. So few that the origin is busy with them
/// for a fraction of a millisecond, and so many that the call itself costs little beside them.
pub(crate) const CELLS_MAX: usize = 64;

/// A key whose totals a message tells.
#[derive(Clone, Debug)]
pub(crate) enum ToldKey {
    /// It is in the table.
    Here(SlotRef),
    /// It was given up.
    Gone(Box<Farewell>),
}

/// What to tell the origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayBatch {
    /// Whose totals they are, beside the parts.
    pub keys: Vec<ToldKey>,
    /// What is told of each key.
    pub parts: Vec<CallKey>,
    /// Cells of all parts.
    pub cells: usize,
}

impl ReplayBatch {
    pub(crate) fn push(&mut self, key: ToldKey, part: CallKey) {
        self.cells += part.cells.len();
        self.keys.push(key);
        self.parts.push(part);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// There is no room for one more like the last, among so many cells.
    pub(crate) fn is_full(&self, cells: usize) -> bool {
        let last = self.parts.last().map_or(0, |part| part.cells.len());
        self.cells + last.max(1) > cells
    }

    /// It tells of the key.
    pub(crate) fn has(&self, key: &OriginKey) -> bool {
        self.parts.iter().any(|part| part.key == *key)
    }

    fn has_room_for(&self, part: &CallKey) -> bool {
        self.cells + part.cells.len() <= CELLS_MAX
    }

    /// Divides the batch into messages: the last key may have been too much for one.
    pub(crate) fn into_messages(self) -> Vec<ReplayBatch> {
        let mut messages: Vec<ReplayBatch> = Vec::new();
        for (key, part) in self.keys.into_iter().zip(self.parts) {
            match messages.last_mut() {
                Some(message) if message.has_room_for(&part) => message.push(key, part),
                _ => {
                    let mut message = ReplayBatch::default();
                    message.push(key, part);
                    messages.push(message);
                }
            }
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::table::cell::CellUpdate;
    use crate::regional::call::Measure;

    /// Found by a review: a message about 64 exact windows had 1,088 cells, and kept the origin busy for longer than it had.
    #[test]
    fn a_message_about_exact_windows_has_no_more_cells_than_others() {
        let part = |cells: usize| CallKey {
            key: OriginKey([0; 20]),
            window_ms: 60_000,
            measure: Measure::Sum,
            cells: std::iter::repeat_n(CellUpdate::default(), cells).collect(),
        };
        for (cells, messages) in [(1, 4), (2, 8), (17, 86)] {
            let mut batch = ReplayBatch::default();
            for slot in 0..256 {
                batch.push(ToldKey::Here(SlotRef::of(slot)), part(cells));
            }
            let sent = batch.into_messages();
            assert_eq!(sent.len(), messages, "{cells} cells a key");
            assert!(sent.iter().all(|message| message.cells <= CELLS_MAX));
            assert_eq!(sent.iter().map(|message| message.keys.len()).sum::<usize>(), 256);
        }
    }
}
