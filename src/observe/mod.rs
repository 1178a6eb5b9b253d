//! What operators see: metrics and log lines.
//!
//! Nothing here makes a request wait: counters are striped over threads, and labels are put together when somebody looks.

pub(crate) mod by_value;
pub(crate) mod global;
pub mod hits;
pub(crate) mod label_name;
pub(crate) mod labels;
pub(crate) mod layers;
pub mod logging;
pub mod outcome;
mod page;
pub mod process;
pub(crate) mod regional;
pub(crate) mod scrape;
pub mod tags;
