//! Two cores for all tests: one that measures has them to itself, the others share them.
//!
//! A test takes its part of the machine when it starts its first process, and keeps it to its end. That is enough to keep
//! tests that measure alone: whoever starts nothing takes no time that matters.

use std::cell::RefCell;

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
