//! Do the regions agree: what the region has counted is published, what others have published is imported.
//!
//! Regions share counts, not verdicts. Each has a row of its own for a cell, which only grows, and a region's count of a
//! cell is its own plus the sum of the others' rows. Nothing here is ever waited for by a request.

pub mod row;
