//! One type of moment for everyone. Only drivers and the server read clocks; the time is an argument everywhere else.

/// The two clocks: windows go by the wall, everything else by the monotonic one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub wall_ms: u64,
    pub mono_us: u64,
}

impl Now {
    pub fn mono_ms(&self) -> u64 {
        self.mono_us / 1000
    }
}
