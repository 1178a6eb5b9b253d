//! Another client, which calls all the time, and must not notice what happens beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::support::harness::{PATIENCE, Service, answer, ask_one};
use crate::support::promise::Promise;

/// The pause between an answer and the next call.
const INTERVAL: Duration = Duration::from_millis(1);
const P99_MAX: Duration = Duration::from_millis(10);

/// A client of `a=x` in the domain `d`, whose limit must be out of reach.
pub struct Bystander {
    is_over: Arc<AtomicBool>,
    answered: Arc<Semaphore>,
    calls: tokio::task::JoinHandle<Histogram<u64>>,
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
                // A late answer stands for all the calls that it has held up.
                latencies_us.record_correct(micros(sent.elapsed()), micros(INTERVAL)).expect("it grows");
                counted.add_permits(1);
                left_after -= u32::from(seen.load(Ordering::Relaxed));
                tokio::time::sleep(INTERVAL).await;
            }
            latencies_us
        });
        Bystander { is_over, answered, calls }
    }

    /// Waits until it has been answered this many times more.
    pub async fn goes_on(&self, times: u32) {
        self.answered.forget_permits(usize::MAX);
        let more = timeout(PATIENCE, self.answered.acquire_many(times)).await.expect("the other client is answered");
        more.expect("nobody closes it").forget();
    }

    /// Makes a few more calls, after whatever happened, and asserts that all were answered. Returns how soon they were.
    pub async fn finish(self) -> Promise {
        self.is_over.store(true, Ordering::Relaxed);
        let latencies_us = self.calls.await.expect("no call of the other client failed");
        let p99 = Duration::from_micros(latencies_us.value_at_quantile(0.99));
        let promise = Promise::within("99 % of another client's calls are answered", P99_MAX, p99);
        eprintln!("{promise}");
        promise
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
