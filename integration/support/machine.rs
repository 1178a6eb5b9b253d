//! Two cores for all tests: one that measures has them to itself, the others share them.
//!
//! A test takes its part of the machine when it starts its first process, and keeps it to its end. That is enough to keep
//! tests that measure alone: whoever starts nothing takes no time that matters.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

thread_local! {
    /// What the test of this thread has. Each test has a thread of its own, and gives it back with it.
    static PART: RefCell<Part> = const { RefCell::new(Part::None) };
}

enum Part {
    None,
    Shared(#[expect(dead_code, reason = "held, never looked at")] RwLockReadGuard<'static, ()>),
    Whole,
}

/// The machine, for a test that needs it to itself.
pub struct Machine(#[expect(dead_code, reason = "held, never looked at")] RwLockWriteGuard<'static, ()>);

impl Drop for Machine {
    fn drop(&mut self) {
        PART.replace(Part::None);
    }
}

/// Waits until no other test uses the machine. To be asked for before anything is started.
pub fn machine() -> Machine {
    PART.replace(Part::None);
    let machine = Machine(MACHINE.write());
    PART.replace(Part::Whole);
    machine
}

/// Waits until no other test needs the machine to itself. The threads that a test starts are part of it.
pub fn share_machine() {
    let is_test = std::thread::current().name().is_some_and(|name| name.contains("::"));
    PART.with_borrow_mut(|part| {
        if is_test && matches!(part, Part::None) {
            *part = Part::Shared(MACHINE.read());
        }
    });
}

/// Notices what the machine itself takes away: a thread that wakes up every millisecond, and how late.
pub struct Calm {
    is_over: Arc<AtomicBool>,
    late: JoinHandle<Vec<Duration>>,
}

impl Calm {
    pub fn watch() -> Calm {
        const TICK: Duration = Duration::from_millis(1);
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let late = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(TICK);
                late.push(began.elapsed().saturating_sub(TICK));
            }
            late
        });
        Calm { is_over, late }
    }

    /// The longest that it was late, and how large a part was later than this.
    pub fn end(self, than: Duration) -> (Duration, f64) {
        self.is_over.store(true, Ordering::Relaxed);
        let late = self.late.join().expect("it only sleeps");
        let part = late.iter().filter(|late| **late > than).count() as f64 / late.len().max(1) as f64;
        (late.into_iter().max().unwrap_or_default(), part)
    }
}

/// How often what is measured may be measured again: others use the machine too, now more and now less.
const ROUNDS: usize = 3;

/// Measures until it is as promised. What makes it slow whatever the machine does makes every round slow.
pub fn in_some_round(measure: impl Fn() -> Result<(), String>) {
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        match measure() {
            Ok(()) => return,
            Err(slow) => {
                eprintln!("measured again: {slow}");
                seen.push(slow);
            }
        }
    }
    panic!("in each of {ROUNDS} rounds: {seen:?}");
}

/// Something that was promised within a time.
pub fn promised(is_kept: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if is_kept { Ok(()) } else { Err(otherwise()) }
}
