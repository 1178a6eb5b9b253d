//! How far can it go wrong: many processes of the production engine and convergence code in one thread, under virtual time,
//! against an exact log.
//!
//! Everything that happens is an event at a virtual moment, and everything random comes from one seed, so the same seed
//! is the same run. [`world`] moves time and carries messages. [`process`] is one process with its real engine and
//! regions, whose requests walk over the stores as those of the server do; `regional/model.rs` is its Redis, and
//! [`service_times`] says how long that takes. [`faults`] says what goes wrong, [`oracle`] knows what was admitted, and
//! [`digest`] tells whether two runs were the same.

pub(crate) mod digest;
pub(crate) mod faults;
pub(crate) mod oracle;
pub mod process;
pub(crate) mod random;
pub(crate) mod service_times;
#[cfg(test)]
mod tests;
pub mod world;
