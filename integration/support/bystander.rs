//! Another client, which calls all the while, and must not notice what happens beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::support::harness::{PATIENCE, Service, answer, ask_one};
use crate::support::machine::Calm;

/// The pace of the calls.
const INTERVAL: Duration = Duration::from_millis(1);
/// The promise is 10 ms on a machine of its own; here, tests and their clients share two cores with the service.
const P99_MAX: Duration = Duration::from_millis(100);

/// A client of `a=x` in the domain `d`, whose limit must be out of reach.
pub struct Bystander {
    is_over: Arc<AtomicBool>,
    answered: Arc<Semaphore>,
    calls: tokio::task::JoinHandle<Histogram<u64>>,
    calm: Calm,
}

impl Bystander {
    pub async fn of(service: &Service) -> Bystander {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut client = service.client().await;
        answer(&mut client, ask_one("a=x")).await;
        let answered = Arc::new(Semaphore::new(0));
        let (seen, counted) = (is_over.clone(), answered.clone());
        let calls = tokio::spawn(async move {
            let mut latencies_us = Histogram::new(3).expect("three digits are within its bounds");
            let mut left_after = 10;
            while left_after > 0 {
                let sent = Instant::now();
                assert_eq!(answer(&mut client, ask_one("a=x")).await.overall_code, 1);
                // One late answer stands for all the calls that were not made meanwhile.
                latencies_us.record_correct(micros(sent.elapsed()), micros(INTERVAL)).expect("it grows");
                counted.add_permits(1);
                left_after -= u32::from(seen.load(Ordering::Relaxed));
                tokio::time::sleep(INTERVAL).await;
            }
            latencies_us
        });
        Bystander { is_over, answered, calls, calm: Calm::watch() }
    }

    /// Waits until it has been answered so many times more.
    pub async fn goes_on(&self, times: u32) {
        self.answered.forget_permits(usize::MAX);
        let more = timeout(PATIENCE, self.answered.acquire_many(times)).await.expect("the other client is answered");
        more.expect("nobody closes it").forget();
    }

    /// Some calls more, after whatever happened.
    pub async fn finish(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let latencies_us = self.calls.await.expect("no call of the other client failed");
        let p99 = Duration::from_micros(latencies_us.value_at_quantile(0.99));
        let (stall, _) = self.calm.end(P99_MAX);
        assert!(
            p99 < P99_MAX + 3 * stall,
            "the other client waited {p99:?} at its 99th percentile of {}",
            latencies_us.len()
        );
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
