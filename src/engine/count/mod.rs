//! The arithmetic of one key, pure: what counts against its limit now, whether hits fit, and when they will.
//!
//! [`counter`] is the door; behind it are two windows that slide or stand ([`window`]), sub-windows ([`exact`]) and a bucket
//! that drains ([`gcra`]).

pub mod counter;
pub mod exact;
pub mod gcra;
pub mod window;
