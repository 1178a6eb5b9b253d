//! Who may come in, and who may wait: bounds on open requests, on requests that wait for a store, and on messages that have
//! not fully arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::regional::consultation::waiting_max;
use crate::rules::policy::Class;
use crate::server::incomplete_calls::IncompleteCalls;
use crate::server::no_answer::NoAnswer;

/// Places beyond the bound, if there is a Redis to wait for: waiting requests may take all other places, and a burst has to be
/// read before it is known which of its requests have to wait. As many as one connection may have open.
const SPARE: usize = 1024;

/// Counts the requests of the process that are open and that wait, and admits more while there is room.
#[derive(Debug)]
pub(crate) struct Admission {
    in_flight_max: usize,
    in_flight: AtomicUsize,
    /// Requests that wait for Redis. They are in flight as well, unless that was full when they began to wait.
    waiting: AtomicUsize,
    /// Whether there is a Redis to wait for.
    has_store: AtomicBool,
    incomplete: Arc<IncompleteCalls>,
    /// Calls of Watch and reflection that are open.
    lasting: Arc<AtomicUsize>,
}

/// The place of an open request, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Admission>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place among the requests that wait for Redis, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingPlace(Arc<Admission>);

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    pub(crate) fn new(in_flight_max: usize, arriving_bytes_max: usize) -> Admission {
        Admission {
            in_flight_max,
            in_flight: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            has_store: AtomicBool::new(false),
            incomplete: Arc::new(IncompleteCalls::new(in_flight_max, arriving_bytes_max)),
            lasting: Arc::default(),
        }
    }

    /// From now on requests may have to wait for a store.
    pub(crate) fn expect_waits(&self) {
        self.has_store.store(true, Ordering::Relaxed);
    }

    /// Requests that hold a place now. A gRPC call that is decided as it arrives takes none.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many requests may be open, [`SPARE`] places aside.
    pub(crate) fn in_flight_max(&self) -> usize {
        self.in_flight_max
    }

    /// Requests that wait for Redis now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Calls whose message has not fully arrived.
    pub(crate) fn incomplete(&self) -> &Arc<IncompleteCalls> {
        &self.incomplete
    }

    /// How many calls of Watch and reflection are open.
    pub(crate) fn lasting(&self) -> &Arc<AtomicUsize> {
        &self.lasting
    }

    /// Admits a request to be read and decided, unless too many are open.
    pub(crate) fn enter_if_room(self: &Arc<Self>) -> Option<InFlight> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight(self.clone());
        (before < self.in_flight_max || self.has_spare_room(before)).then_some(in_flight)
    }

    /// Admits a request to be read and decided; when too many are open, ends the call that has waited longest for its
    /// message.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<InFlight, NoAnswer> {
        let in_flight = self.enter_if_room();
        if in_flight.is_none() && self.incomplete.end_longest() {
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            return Ok(InFlight(self.clone()));
        }
        in_flight.ok_or_else(|| self.overload())
    }

    /// A place to wait for Redis, unless so many requests wait that one of this class may not join them.
    pub(crate) fn place_to_wait(self: &Arc<Self>, class: Class) -> Option<WaitingPlace> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = WaitingPlace(self.clone());
        (before < waiting_max(self.in_flight_max, class)).then_some(place)
    }

    /// Requests that wait for Redis do not keep others from being read: memory decides these, or they are answered at once.
    fn has_spare_room(&self, in_flight: usize) -> bool {
        let can_wait = self.has_store.load(Ordering::Relaxed);
        can_wait && in_flight < self.in_flight_max.saturating_add(SPARE)
    }

    /// Why a request that finds no room gets no answer.
    pub(crate) fn overload(&self) -> NoAnswer {
        NoAnswer::Overload { max: self.in_flight_max }
    }
}
