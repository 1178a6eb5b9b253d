//! Several regions and the table in MySQL between them.

mod accuracy;
mod conflicts;
mod faults;
mod sharing;
mod store;
