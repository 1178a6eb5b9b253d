//! When to ask who has which slot: at once when calls fail, often while they do, and from time to time otherwise.
//!
//! When a node is down, its slots go to another one, and only asking shows when. A process that asks five times a second
//! follows within a fraction of one; if it takes long, once a second has to do.

/// The time between two reads while all is well.
const CALM_US: u64 = 15_000_000;
/// Between two reads while calls fail.
const TROUBLED_US: u64 = 200_000;
/// Likewise when that has lasted for [`LONG_US`].
const LONG_TROUBLED_US: u64 = 1_000_000;
const LONG_US: u64 = 60_000_000;
/// A call that fails means trouble for this long: probes of a node that is down come at least so often.
const TROUBLE_US: u64 = 3_000_000;

/// Plans the reads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapWatch {
    /// When the last read ended.
    read_us: u64,
    /// When the next is due.
    next_us: u64,
    troubled_since_us: u64,
    troubled_until_us: u64,
}

impl MapWatch {
    /// When to read.
    pub(crate) fn next_us(&self) -> u64 {
        self.next_us
    }

    /// A call has failed.
    pub(crate) fn trouble(&mut self, now_us: u64) {
        if now_us >= self.troubled_until_us {
            self.troubled_since_us = now_us;
        }
        self.troubled_until_us = now_us + TROUBLE_US;
        self.next_us = self.next_us.min(now_us.max(self.read_us + self.pause_us(now_us)));
    }

    /// A read has ended. `luck`, from 0 to 1, takes up to a quarter of the pause away, so that processes are not in step.
    pub(crate) fn read(&mut self, luck: f64, now_us: u64) {
        self.read_us = now_us;
        let pause_us = self.pause_us(now_us);
        self.next_us = now_us + pause_us - (pause_us as f64 / 4.0 * luck.clamp(0.0, 1.0)) as u64;
    }

    fn pause_us(&self, now_us: u64) -> u64 {
        match now_us < self.troubled_until_us {
            true if now_us < self.troubled_since_us + LONG_US => TROUBLED_US,
            true => LONG_TROUBLED_US,
            false => CALM_US,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    #[test]
    fn a_call_that_fails_has_the_map_read_at_once_and_then_often() {
        let mut watch = MapWatch::default();
        assert_eq!(watch.next_us(), 0, "the first is due at once");
        watch.read(0.0, 1000);
        assert_eq!(watch.next_us(), 1000 + CALM_US);
        watch.trouble(5 * SECOND_US);
        assert_eq!(watch.next_us(), 5 * SECOND_US);
        watch.read(0.0, 5 * SECOND_US);
        watch.trouble(5 * SECOND_US + 1);
        assert_eq!(watch.next_us(), 5 * SECOND_US + TROUBLED_US, "however many fail");
        watch.read(1.0, 9 * SECOND_US);
        assert_eq!(watch.next_us(), 9 * SECOND_US + CALM_US * 3 / 4, "all is well again");
    }

    #[test]
    fn trouble_that_lasts_has_it_read_less_often() {
        let (mut watch, mut reads) = (MapWatch::default(), Vec::new());
        for now_us in (0..300 * SECOND_US).step_by(10_000) {
            watch.trouble(now_us);
            if now_us >= watch.next_us() {
                reads.push(now_us);
                watch.read(0.0, now_us);
            }
        }
        let later = reads.iter().filter(|at| **at > 61 * SECOND_US).count();
        assert!(reads.len() - later > 290 && (230..245).contains(&later), "{} of {}", later, reads.len());
    }
}
