//! Several regions and the table in MySQL between them.

mod accuracy;
mod conflicts;
pub mod faults;
mod model;
mod reads;
mod sharing;
mod store;
pub mod voice;
