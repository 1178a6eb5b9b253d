//! The two clocks, and the moments read from them. Only drivers and the server read clocks; everywhere else the time is an
//! argument.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time starts here, so that zero can stand for never.
const MONO_START_US: u64 = 1_000_000;

/// The two clocks: windows go by the wall, everything else by the monotonic one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the Unix epoch. May go back, when the clock is set.
    pub wall_ms: u64,
    /// Microseconds since the process began, plus a second. Never goes back; 0 stands for never.
    pub mono_us: u64,
}

impl Now {
    /// Monotonic time in whole milliseconds.
    pub fn mono_ms(&self) -> u64 {
        self.mono_us / 1000
    }
}

/// When a request is decided, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Kept as it was read: most requests never need it as monotonic time ([`Clock::mono_us`]).
    pub instant: Instant,
    /// Milliseconds since the Unix epoch.
    pub wall_ms: u64,
}

impl Moment {
    pub fn now() -> Moment {
        Moment { instant: Instant::now(), wall_ms: wall_ms() }
    }
}

/// The wall clock's time, to tell people when something happened.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall_time() -> SystemTime {
    SystemTime::now()
}

/// Wall time in whole milliseconds since the epoch. A clock before the epoch reads as the epoch.
pub fn wall_ms() -> u64 {
    let since_epoch = wall_time().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Reads both clocks. Monotonic time counts from when the process began.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
}

impl Clock {
    pub fn since(began: Instant) -> Clock {
        Clock { began }
    }

    pub fn now(&self) -> Now {
        Now { wall_ms: wall_ms(), mono_us: self.mono_us(Instant::now()) }
    }

    /// The monotonic time of an instant, in microseconds.
    pub fn mono_us(&self, at: Instant) -> u64 {
        let passed_us = at.saturating_duration_since(self.began).as_micros();
        u64::try_from(passed_us).unwrap_or(u64::MAX).saturating_add(MONO_START_US)
    }

    /// The monotonic time of an instant, in whole milliseconds. Every request needs it, so it avoids a division of 128 bits.
    pub fn mono_ms(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.began);
        (passed.as_secs() + MONO_START_US / 1_000_000) * 1000 + u64::from(passed.subsec_millis())
    }

    /// The instant at which the monotonic clock shows this time.
    pub fn instant(&self, mono_us: u64) -> Instant {
        self.began + Duration::from_micros(mono_us.saturating_sub(MONO_START_US))
    }

    /// How long the process has been running.
    pub fn running_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_starts_after_zero_and_leads_back_to_its_instant() {
        let began = Instant::now();
        let clock = Clock::since(began);
        assert_eq!((clock.mono_us(began), clock.mono_ms(began)), (MONO_START_US, MONO_START_US / 1000));
        let later = began + Duration::from_micros(1_234_567);
        assert_eq!(clock.mono_ms(later), clock.mono_us(later) / 1000);
        assert_eq!(clock.instant(clock.mono_us(later)), later);
        assert_eq!(clock.instant(0), began);
    }
}
