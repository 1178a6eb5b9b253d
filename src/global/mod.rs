//! Do the regions agree: what the region has counted is published, what others have published is imported.
//!
//! Regions share counts, not verdicts. Each has a row of its own for a cell, which only grows, and a region's count of a
//! cell is its own plus the sum of the others' rows. [`exchange`] is the process's side of it, as a state machine:
//! [`publish`] says which rows to send and what to do when the server refuses some, [`import`] takes rows over,
//! [`cadence`] says when. Nothing here is ever waited for by a request.

pub(crate) mod cadence;
pub(crate) mod digested_keys;
pub(crate) mod driver;
pub(crate) mod exchange;
pub(crate) mod import;
pub(crate) mod metrics;
pub(crate) mod model;
pub mod mysql;
pub(crate) mod names;
pub mod publish;
pub mod row;
pub(crate) mod settings;
