//! The processes of one region and their Redis.

mod accuracy;
mod clock;
mod cluster;
mod connection;
mod faults;
mod identity;
mod quota;
mod restart;
mod stores;
mod waiting;
