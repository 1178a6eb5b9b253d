//! Does the region agree: the processes of a region enforce one limit together, through its Redis, the origin.
//!
//! Most decisions stay in memory (`engine/decide/decider.rs` says which); this is what happens off their path, and on the path
//! of the few that have to ask. What to send, when, and what an answer means is decided by state machines that are given
//! the time and the events: [`consultation`] (how a request walks over the stores), [`wait_queue`] (who waits for which key,
//! and what goes together), [`replay`] (what the origin has not heard of), [`breaker`] (whether it is worth asking),
//! [`witness`] (whether it has lost data), [`presence`] (whether this process knows how many they are), all but the first held
//! together by [`region`]. Only `redis/` talks to a server, and `regional/driver.rs` connects the two. The simulator runs the
//! same state machines against [`model`].

pub(crate) mod breaker;
pub mod call;
pub(crate) mod consultation;
pub(crate) mod driver;
pub(crate) mod key_names;
pub(crate) mod metrics;
pub(crate) mod model;
pub(crate) mod presence;
pub mod redis;
pub(crate) mod region;
pub(crate) mod replay;
pub(crate) mod wait_queue;
pub(crate) mod witness;
