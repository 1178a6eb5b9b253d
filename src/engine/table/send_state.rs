//! How far a key is in telling its store: waiting in the queue, under way, or neither.
//!
//! Every change of that state is a method here. The invariants:
//!
//! - A key stands in the queue once at most: a caller pushes it only if [`SendState::enqueue`] says so.
//! - One message of a key is under way at a time. Hits that come meanwhile wait in the queue, or in the key itself if the
//!   queue came to it too early; the answer puts it back.
//! - An answer belongs to a message: a key that moves to another store, or is given up, changes its generation, and
//!   answers to what went out before do not find it.

/// Where a key stands between its slot and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Queued,
    /// A message with its totals is on the way.
    Sent,
    /// A message is on the way, and something has come since.
    SentAndQueued,
}

/// How far a key is in telling its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct SendState {
    stage: Stage,
    /// The store is to be told even though nothing is pending: to read the key anew, or because the store has lost it. Holds
    /// at any stage, until a message takes the key along.
    is_wanted: bool,
}

impl SendState {
    pub(super) const NEW: SendState = SendState { stage: Stage::Idle, is_wanted: false };

    /// Something is to be told. True if the caller has to push the key to the queue.
    #[inline]
    pub(super) fn enqueue(&mut self) -> bool {
        self.stage = match self.stage {
            Stage::Idle => Stage::Queued,
            Stage::Sent => Stage::SentAndQueued,
            Stage::Queued | Stage::SentAndQueued => return false,
        };
        true
    }

    /// The queue has come to the key. False if the key has no place there: another store shares it by now.
    pub(in crate::engine) fn dequeue(&mut self) -> bool {
        self.stage = match self.stage {
            Stage::Queued => Stage::Idle,
            Stage::SentAndQueued => Stage::Sent,
            Stage::Idle | Stage::Sent => return false,
        };
        true
    }

    /// A message goes out. True if it has to say everything, not only what is pending.
    pub(super) fn send(&mut self) -> bool {
        debug_assert_eq!(self.stage, Stage::Idle, "one message at a time, of a key that has left the queue");
        self.stage = Stage::Sent;
        std::mem::take(&mut self.is_wanted)
    }

    /// The message was answered, or given up.
    pub(super) fn end(&mut self) {
        debug_assert!(self.is_sent(), "an answer belongs to a message");
        self.stage = if self.is_queued() { Stage::Queued } else { Stage::Idle };
    }

    /// Has the store told with the next message, whether anything is pending or not.
    #[inline]
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Another store shares the key from now on: anything queued or under way is about a key that is no more.
    pub(super) fn move_on(&mut self) {
        self.stage = Stage::Idle;
    }

    #[inline]
    pub(super) fn is_wanted(self) -> bool {
        self.is_wanted
    }

    pub(super) fn is_queued(self) -> bool {
        matches!(self.stage, Stage::Queued | Stage::SentAndQueued)
    }

    pub(in crate::engine) fn is_sent(self) -> bool {
        matches!(self.stage, Stage::Sent | Stage::SentAndQueued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_pushed_once_and_sent_once() {
        let mut sync = SendState::NEW;
        assert!(sync.enqueue() && !sync.enqueue());
        assert!(sync.dequeue() && !sync.dequeue());
        sync.want();
        assert!(sync.send() && !sync.is_wanted());
        assert!(sync.enqueue() && sync.is_sent(), "hits that come meanwhile wait for the next message");
        sync.end();
        assert!(sync.is_queued() && !sync.is_sent() && !sync.enqueue(), "it stands in the queue already");
    }
}
