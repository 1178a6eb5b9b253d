//! Does the region agree: the processes of a region enforce one limit together, through its Redis, the origin.
//!
//! Most decisions stay in memory (`engine/decide/decider.rs` says which). This folder does what happens off their path,
//! and serves the few requests that have to ask. State machines decide what to send, when, and what an answer means;
//! they are given the time and the events: [`consultation`] (how a request walks over the stores), [`wait_queue`] (who
//! waits for which key, and what goes together), [`replay`] (what the origin has not heard of), [`send_window`] (how
//! much of that it is told at a time), [`tag_queue`] (in which order a Cluster is), [`breaker`] (whether it is worth asking), [`witness`] (whether it has lost data), [`presence`] (whether this process knows how many
//! processes are alive). [`region`] holds all but the first together. [`voice`] is what the processes tell each other for
//! the sake of other regions. Only `redis/` talks to a server, and
//! `regional/driver.rs` connects it to the state machines. The simulator runs the same state machines against
//! [`model`].

pub(crate) mod breaker;
pub mod call;
pub(crate) mod consultation;
pub(crate) mod driver;
pub(crate) mod gathering;
pub(crate) mod key_names;
pub(crate) mod map_watch;
pub(crate) mod metrics;
pub(crate) mod model;
pub mod node_map;
pub(crate) mod presence;
pub mod redis;
pub(crate) mod region;
pub(crate) mod replay;
pub(crate) mod send_window;
pub(crate) mod tag_queue;
pub(crate) mod voice;
pub(crate) mod wait_queue;
pub(crate) mod witness;
