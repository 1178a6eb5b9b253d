//! Who waits a moment for others to go with them: a call costs the origin much the same for one key and for a few.
//!
//! A request that comes while no check is under way goes at once. One that comes while a check is under way goes when that
//! comes back, together with all others that came meanwhile, and after [`GATHER_US`] at the latest.

use smallvec::SmallVec;

use crate::regional::call::OriginKey;
use crate::regional::wait_queue::WaitId;

/// How long requests wait for others.
const GATHER_US: u64 = 100;

/// A request that is ready to go. Its keys are busy: nobody else asks about them.
#[derive(Clone, Debug)]
pub(crate) struct ReadyRequest {
    /// It may be withdrawn by the time that it goes.
    pub id: WaitId,
    /// For each of its questions.
    pub keys: SmallVec<[OriginKey; 2]>,
}

/// Requests that go with the next check.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    ready: Vec<ReadyRequest>,
    until_us: u64,
}

impl Gathering {
    /// One more waits for others.
    pub(crate) fn add(&mut self, request: ReadyRequest, now_us: u64) {
        if self.ready.is_empty() {
            self.until_us = now_us + GATHER_US;
        }
        self.ready.push(request);
    }

    /// Until when they wait, if anyone does.
    pub(crate) fn until_us(&self) -> Option<u64> {
        (!self.ready.is_empty()).then_some(self.until_us)
    }

    /// They go now.
    pub(crate) fn take(&mut self) -> Vec<ReadyRequest> {
        std::mem::take(&mut self.ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_says_how_long_all_of_them_wait() {
        let request = |id| ReadyRequest { id: WaitId(id), keys: SmallVec::new() };
        let mut gathering = Gathering::default();
        assert_eq!(gathering.until_us(), None);
        gathering.add(request(1), 1000);
        gathering.add(request(2), 1090);
        assert_eq!(gathering.until_us(), Some(1100));
        assert_eq!(gathering.take().iter().map(|request| request.id.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((gathering.until_us(), gathering.take().len()), (None, 0));
    }
}
