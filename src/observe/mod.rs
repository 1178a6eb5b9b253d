//! What operators see: metrics, log lines.
//!
//! Nothing here makes a request wait: counters are striped over threads, labels are put together when somebody looks.

pub mod by_value;
pub mod global;
pub mod hits;
pub mod label_name;
pub mod labels;
pub mod layers;
pub mod logging;
pub mod outcome;
mod page;
pub mod process;
pub mod regional;
pub mod scrape;
pub mod tags;
