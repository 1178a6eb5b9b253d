//! When requests are sent.
//!
//! Without a rate the loop is closed: every stream asks again as soon as it is answered, and the server sets the pace.
//! With one it is open: requests are due at fixed times, whatever the server does, and their latency counts from those
//! times. A server that stalls can't hide the requests that it kept from being sent (coordinated omission).

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// How long the pacer's thread may sleep before it looks whether the run is over.
const NAP_MAX: Duration = Duration::from_millis(20);

/// Points in time at a fixed distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    first: Instant,
    distance_ns: f64,
}

impl Ticks {
    /// The times of one thread out of several that share a rate, each a little after the one before.
    pub(super) fn new(start: Instant, rate: f64, thread: usize, threads: usize) -> Ticks {
        let first = start + Duration::from_secs_f64(thread as f64 / rate);
        Ticks { first, distance_ns: 1e9 * threads as f64 / rate }
    }

    fn time(&self, number: u64) -> Instant {
        self.first + Duration::from_nanos((number as f64 * self.distance_ns) as u64)
    }

    /// How many of the times have come by now.
    fn count(&self, now: Instant) -> u64 {
        match now.checked_duration_since(self.first) {
            Some(since) => (since.as_nanos() as f64 / self.distance_ns) as u64 + 1,
            None => 0,
        }
    }
}

/// The pace of one thread's requests.
pub(super) struct Pace {
    beat: Option<OpenLoop>,
    /// When requests began that the server has not processed. They go first.
    again: RefCell<Vec<Instant>>,
    is_over: Cell<bool>,
}

struct OpenLoop {
    beat: Ticks,
    /// A permit for every request that is due.
    due: Arc<Semaphore>,
    /// How many requests were begun, not counting those that were begun again.
    taken: Cell<u64>,
}

impl Pace {
    /// Keeps the times of `beat`, whose permits say how many of them have come. Without it, requests go out as fast as
    /// answers come.
    pub(super) fn new(beat: Option<(Ticks, Arc<Semaphore>)>) -> Pace {
        let beat = beat.map(|(beat, due)| OpenLoop { beat, due, taken: Cell::new(0) });
        Pace { beat, again: RefCell::default(), is_over: Cell::new(false) }
    }

    /// The next request, if there is one now, and since when it is due.
    pub(super) fn take(&self, now: Instant) -> Option<Instant> {
        if self.is_over.get() {
            return None;
        }
        if let Some(open) = &self.beat {
            open.due.try_acquire().ok()?.forget();
        }
        Some(self.begin(now))
    }

    /// Waits for a request to be due, and takes it; `None` when the run is over. In a closed loop nothing becomes due by
    /// time, and this waits for good.
    pub(super) async fn wait(&self) -> Option<Instant> {
        let Some(open) = &self.beat else { return pending().await };
        open.due.acquire().await.ok()?.forget();
        Some(self.begin(Instant::now()))
    }

    fn begin(&self, now: Instant) -> Instant {
        if let Some(begun) = self.again.borrow_mut().pop() {
            return begun;
        }
        let Some(open) = &self.beat else { return now };
        let number = open.taken.get();
        open.taken.set(number + 1);
        open.beat.time(number)
    }

    /// Puts back a request that was not processed.
    pub(super) fn put_back(&self, begun: Instant) {
        self.again.borrow_mut().push(begun);
        if let Some(open) = &self.beat {
            open.due.add_permits(1);
        }
    }

    /// Ends the run: no more requests. Returns how many were due and never sent.
    pub(super) fn end(&self) -> u64 {
        self.is_over.set(true);
        let Some(open) = &self.beat else { return 0 };
        open.due.close();
        open.due.available_permits() as u64
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }
}

/// Makes requests due as their times come, in a thread of its own: the runtime's timers are good to a millisecond, a
/// sleeping thread to a tenth of that.
pub(super) struct Pacer {
    is_over: Arc<AtomicBool>,
}

impl Pacer {
    pub(super) fn start(beats: Vec<(Ticks, Arc<Semaphore>)>) -> io::Result<Pacer> {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = is_over.clone();
        let mut released = vec![0; beats.len()];
        let mut release = move || {
            let now = Instant::now();
            let each = beats.iter().zip(&mut released).map(|((beat, due), released)| {
                let count = beat.count(now).max(*released);
                // Waking a thread that has nothing to do would only slow it down.
                if count > *released {
                    due.add_permits((count - *released) as usize);
                    *released = count;
                }
                beat.time(count)
            });
            each.min()
        };
        thread::Builder::new().name("pacer".into()).spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let next = release();
                let wait = next.map_or(NAP_MAX, |next| next.saturating_duration_since(Instant::now()));
                thread::sleep(wait.min(NAP_MAX));
            }
        })?;
        Ok(Pacer { is_over })
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_rate_in_turns() {
        let start = Instant::now();
        let beats = [0, 1].map(|thread| Ticks::new(start, 1000.0, thread, 2));
        let after = |beat: &Ticks, number| (beat.time(number) - start).as_micros();
        assert_eq!([0, 1, 2].map(|number| after(&beats[0], number)), [0, 2000, 4000]);
        assert_eq!([0, 1, 2].map(|number| after(&beats[1], number)), [1000, 3000, 5000]);
        let counts = |micros| beats.map(|beat| beat.count(start + Duration::from_micros(micros)));
        assert_eq!((counts(0), counts(1500), counts(10_500)), ([1, 0], [1, 1], [6, 5]));
    }

    #[tokio::test]
    async fn a_late_request_counts_from_when_it_was_due() {
        let start = Instant::now();
        let due = Arc::new(Semaphore::new(3));
        let pace = Pace::new(Some((Ticks::new(start, 10.0, 0, 1), due.clone())));
        let tenth = |number: u64| start + Duration::from_millis(100 * number);
        let now = tenth(7);
        assert_eq!((pace.take(now), pace.wait().await), (Some(tenth(0)), Some(tenth(1))));
        pace.put_back(tenth(0));
        assert_eq!(pace.take(now), Some(tenth(0)), "what was not processed comes first");
        assert_eq!((pace.take(now), pace.take(now)), (Some(tenth(2)), None));
        due.add_permits(4);
        assert_eq!((pace.end(), pace.take(now), pace.wait().await), (4, None, None));
    }

    #[test]
    fn without_a_rate_a_request_is_due_at_once() {
        let pace = Pace::new(None);
        let now = Instant::now();
        assert_eq!(pace.take(now), Some(now));
        pace.put_back(now - Duration::from_millis(1));
        assert_eq!(pace.take(now), Some(now - Duration::from_millis(1)));
        assert_eq!((pace.end(), pace.take(now)), (0, None));
    }
}
