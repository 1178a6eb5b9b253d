//! The processes of one region and their Redis.

pub mod accuracy;
mod clock;
mod closed;
mod cluster;
mod connection;
pub mod faults;
pub mod heal;
mod held;
mod identity;
pub mod nodes;
mod quota;
pub mod restart;
mod stores;
mod twins;
pub mod waiting;
