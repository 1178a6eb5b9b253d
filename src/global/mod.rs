//! Do the regions agree: the region publishes what it has counted, and imports what others have published.
//!
//! Regions share counts, not verdicts. Each region has a row of its own for a cell, which only grows. What a region
//! counts in a cell is its own count plus the sum of the others' rows. [`exchange`] is the process's side of it, as a
//! state machine: [`publish`] says which rows to send and what to do when the server refuses some, [`import`] takes
//! rows over, [`cadence`] says when. No request ever waits for anything here.

pub(crate) mod cadence;
pub(crate) mod digested_keys;
pub(crate) mod driver;
pub(crate) mod exchange;
pub(crate) mod feed;
pub mod import;
pub(crate) mod mentions;
pub(crate) mod metrics;
pub mod model;
pub mod mysql;
pub(crate) mod names;
pub(crate) mod packing;
pub mod publish;
pub mod row;
pub(crate) mod settings;
pub(crate) mod spoken_cells;
pub(crate) mod voice;
