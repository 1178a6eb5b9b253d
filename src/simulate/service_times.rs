//! How long a store, or the table that regions share, takes for what it is asked. It serves one call after the other, so others wait meanwhile: without this, a
//! store that is told too much would never show.

use crate::regional::call::Call;

/// What a store takes for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTimes {
    /// For any call.
    pub call_ns: u64,
    /// For each cell of it.
    pub cell_ns: u64,
    /// For each need of its asks.
    pub need_ns: u64,
}

impl ServiceTimes {
    /// About what Redis 7.0 was measured to take: 3 us for a told cell, 30 us for a check of a sliding window.
    pub const REDIS: ServiceTimes = ServiceTimes { call_ns: 15_000, cell_ns: 3_000, need_ns: 9_000 };

    /// A server that takes so many times as long.
    pub fn times(self, slower: u64) -> ServiceTimes {
        let ServiceTimes { call_ns, cell_ns, need_ns } = self;
        ServiceTimes { call_ns: call_ns * slower, cell_ns: cell_ns * slower, need_ns: need_ns * slower }
    }

    /// The time that a call takes.
    pub fn of(self, call: &Call) -> u64 {
        let cells: usize = call.parts.iter().map(|part| part.cells.len()).sum();
        let needs: usize = call.asks.iter().map(|ask| ask.needs.len()).sum();
        self.call_ns + self.cell_ns * cells as u64 + self.need_ns * needs as u64
    }
}

/// What the server of the table takes for a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableTimes {
    /// For any statement.
    pub statement_ns: u64,
    /// For each row that it reads.
    pub read_row_ns: u64,
    /// For each row that it writes.
    pub written_row_ns: u64,
}

impl TableTimes {
    /// About what MariaDB 10.11 was measured to take of a core: it reads 400,000 rows a second and writes 30,000.
    pub const MYSQL: TableTimes = TableTimes { statement_ns: 100_000, read_row_ns: 2_500, written_row_ns: 33_000 };

    /// A server that takes so many times as long.
    pub fn times(self, slower: u64) -> TableTimes {
        let TableTimes { statement_ns, read_row_ns, written_row_ns } = self;
        TableTimes {
            statement_ns: statement_ns * slower,
            read_row_ns: read_row_ns * slower,
            written_row_ns: written_row_ns * slower,
        }
    }
}
