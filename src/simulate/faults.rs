//! What goes wrong between the processes and the origin.

/// How messages travel.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// One way, between these.
    pub delay_us: (u64, u64),
    /// Calls that never arrive, of a thousand.
    pub lost_calls: u64,
    /// Replies that never arrive although the call was applied, of a thousand.
    pub lost_replies: u64,
    /// Calls that arrive twice, of a thousand.
    pub repeated: u64,
    /// Calls that arrive late, by up to a second, of a thousand.
    pub late: u64,
}

impl Network {
    /// Half a millisecond each way, and nothing goes wrong.
    pub const QUIET: Network = Network { delay_us: (450, 550), lost_calls: 0, lost_replies: 0, repeated: 0, late: 0 };
    /// Much goes wrong.
    pub const ROUGH: Network =
        Network { delay_us: (200, 3_000), lost_calls: 50, lost_replies: 150, repeated: 50, late: 50 };
}

/// Something that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The origin answers nothing for so long.
    Freeze { for_us: u64 },
    /// The origin loses all it has.
    LoseData,
    /// A copy of the origin from so long ago takes over.
    Failover { back_us: u64 },
    /// A process dies and another takes its place.
    Crash { process: usize },
    /// A process stops cleanly and another takes its place.
    Restart { process: usize },
    /// From now on nothing goes wrong with messages.
    Calm,
}

/// A mistake on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The origin applies some replays twice, as deltas would be.
    DoubleApply,
    /// The origin answers some replays that it has not applied.
    LostAcknowledgement,
}
