//! The threads that serve gRPC connections, each with a runtime of its own.
//!
//! A connection stays with its thread from its first byte to its last: no call goes from one core to another, no thread is
//! woken for it, and none steals work. That alone halves the cost of a call, compared with one runtime over all threads. A
//! new connection goes to the thread that has the fewest. If every thread listened on the port by itself (SO_REUSEPORT),
//! chance would decide, and Envoy opens as few as one connection for each of its workers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// After how many turns of connections a thread looks at its sockets again. A busy connection has one turn right after the
/// other, and a connection that has just become ready must not wait for many of them. A turn is long, so a look costs little.
const EVENT_INTERVAL: u32 = 4;

/// All threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Workers(Box<[Worker]>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    /// Dropped to end the thread.
    _until: oneshot::Sender<()>,
}

/// A connection's place on a thread, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

impl Seat {
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    pub(crate) fn start(count: usize) -> io::Result<Workers> {
        (0..count.max(1)).map(Worker::start).collect::<io::Result<_>>().map(Workers)
    }

    /// A seat on the thread with the fewest connections. If several have as few, it is on the one that had the least to do,
    /// because some connections are there for a probe only.
    pub(crate) fn seat(&self) -> Seat {
        let load = |worker: &&Worker| {
            let busy = worker.runtime.metrics().worker_total_busy_duration(0);
            (worker.connections.load(Ordering::Relaxed), busy)
        };
        let Some(worker) = self.0.iter().min_by_key(load) else { unreachable!("there is at least one") };
        worker.connections.fetch_add(1, Ordering::Relaxed);
        Seat { runtime: worker.runtime.clone(), connections: worker.connections.clone() }
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Worker> {
        let runtime = Builder::new_current_thread().event_interval(EVENT_INTERVAL).enable_all().build()?;
        let handle = runtime.handle().clone();
        let (until, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name(format!("grpc-{number}")).spawn(move || {
            // An error means that the sender was dropped: nobody needs this thread any more.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Worker { runtime: handle, connections: Arc::default(), _until: until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn connections_go_where_the_fewest_are() {
        let workers = Workers::start(3).unwrap();
        let counts = || workers.0.iter().map(|worker| worker.connections.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let mut seats: Vec<Seat> = (0..6).map(|_| workers.seat()).collect();
        assert_eq!(counts(), [2, 2, 2]);
        seats.retain(|seat| !Arc::ptr_eq(&seat.connections, &workers.0[1].connections));
        assert_eq!(counts(), [2, 0, 2]);
        seats.extend([workers.seat(), workers.seat()]);
        assert_eq!(counts(), [2, 2, 2]);
    }

    #[tokio::test]
    async fn of_two_with_as_few_it_is_the_one_that_had_less_to_do() {
        let workers = Workers::start(2).unwrap();
        // Both have started.
        for worker in &workers.0 {
            worker.runtime.spawn(async {}).await.unwrap();
        }
        let busy = |number: usize| workers.0[number].runtime.metrics().worker_total_busy_duration(0);
        // tokio counts the time that a thread was busy when it has nothing more to do. A thread that lost its processor
        // while it started was busy as well.
        while busy(0) <= busy(1) {
            workers.0[0].runtime.spawn(async { std::thread::sleep(Duration::from_millis(50)) }).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let seats = [workers.seat(), workers.seat()];
        let is_of = |seat: &Seat, number: usize| Arc::ptr_eq(&seat.connections, &workers.0[number].connections);
        assert!(is_of(&seats[0], 1) && is_of(&seats[1], 0));
    }

    #[tokio::test]
    async fn what_is_spawned_on_a_seat_runs_on_its_thread() {
        let workers = Workers::start(2).unwrap();
        let seats = [workers.seat(), workers.seat()];
        for seat in &seats {
            let is_of = |worker: &Worker| Arc::ptr_eq(&seat.connections, &worker.connections);
            let number = workers.0.iter().position(is_of).unwrap();
            let name = seat.runtime().spawn(async { std::thread::current().name().map(str::to_owned) }).await.unwrap();
            assert_eq!(name, Some(format!("grpc-{number}")));
        }
    }
}
