//! What goes wrong between processes, origins, and the table that regions share.

/// How messages travel.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// How long a message takes one way to a store or back, between these.
    pub delay_us: (u64, u64),
    /// Calls that get lost on their way, of a thousand.
    pub lost_calls: u64,
    /// Replies that never arrive although the call was applied, of a thousand.
    pub lost_replies: u64,
    /// Calls, and published rows, that arrive once more within a second, of a thousand.
    pub repeated: u64,
    /// Calls that arrive late, by up to a second, of a thousand that are not lost.
    pub late: u64,
    /// How long a message takes one way to the table that regions share or back, between these.
    pub table_delay_us: (u64, u64),
    /// Statements that get lost on their way there or back, of a thousand.
    pub table_lost: u64,
    /// How long it takes from when rows are dated until others see them, between these.
    pub commit_us: (u64, u64),
}

impl Network {
    /// Half a millisecond each way to a store, and nothing goes wrong.
    pub const QUIET: Network = Network {
        delay_us: (450, 550),
        lost_calls: 0,
        lost_replies: 0,
        repeated: 0,
        late: 0,
        table_delay_us: (2_000, 40_000),
        table_lost: 0,
        commit_us: (1_000, 5_000),
    };
    /// Much goes wrong.
    pub const ROUGH: Network = Network {
        delay_us: (200, 3_000),
        lost_calls: 50,
        lost_replies: 150,
        repeated: 50,
        late: 50,
        table_delay_us: (1_000, 200_000),
        table_lost: 200,
        commit_us: (1_000, 2_500_000),
    };
}

/// Something that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A region's origin answers nothing for this long.
    Freeze { region: usize, for_us: u64 },
    /// A node of a region's Cluster answers nothing for this long: by its number, those that were promoted come last.
    FreezeNode { region: usize, node: usize, for_us: u64 },
    /// A replica of that node takes over its slots, with what it had this long ago.
    Promote { region: usize, node: usize, back_us: u64 },
    /// For this long the answers of a region's origin take longer than usual, by something between these.
    Slow { region: usize, by_us: (u64, u64), for_us: u64 },
    /// For this long probes of a region's origin fail, and nothing else.
    FailProbes { region: usize, for_us: u64 },
    /// The owner of strict limits answers nothing for this long.
    FreezeOwner { for_us: u64 },
    /// A region's origin loses all it has.
    LoseData { region: usize },
    /// A copy of a region's origin takes over, which was made this long ago.
    Failover { region: usize, back_us: u64 },
    /// For this long nothing goes from a region to the table that regions share, or nothing comes back, or neither.
    Partition { region: usize, way: Way, for_us: u64 },
    /// What the table is told within this time is committed when it is over.
    Stall { for_us: u64 },
    /// The table answers nothing for this long: statements that arrive are served then, also those that were given up.
    FreezeTable { for_us: u64 },
    /// Another server has the table from now on, whose clock is off by this much.
    TableClock { by_ms: i64 },
    /// From now on the wall clocks of a region's processes are off by this much.
    Skew { region: usize, by_ms: i64 },
    /// From now on the wall clock of one process, and of those that take its place, is off by this much.
    Clock { process: usize, by_ms: i64 },
    /// A process does nothing about other regions for this long.
    Pause { process: usize, for_us: u64 },
    /// A process dies and another takes its place.
    Crash { process: usize },
    /// A process stops cleanly and another takes its place.
    Restart { process: usize },
    /// The last region has one process more from now on.
    Join,
    /// From now on nothing goes wrong with messages.
    Calm,
}

/// Which way is cut, as seen from a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    There,
    Back,
    Both,
}

/// A mistake on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The origin applies some replays twice, as deltas would be.
    DoubleApply,
    /// The origin answers some replays that it has not applied.
    LostAcknowledgement,
}
