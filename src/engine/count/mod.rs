//! The arithmetic of one key, pure: what counts against its limit now, whether hits fit, and when they will.
//!
//! [`counter`] is the door. Behind it are two windows, sliding or fixed ([`window`]), sub-windows ([`exact`]) and a bucket
//! that drains ([`gcra`]).

pub(crate) mod counter;
pub(crate) mod exact;
pub(crate) mod gcra;
pub(crate) mod window;

/// Hits as a signed number. No count comes near the largest.
#[inline(always)]
pub(crate) fn signed(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

/// Whether so many hits fit into what is available. If that is below zero, not even zero hits fit.
#[inline(always)]
pub(crate) fn fits(available: i64, hits: u64) -> bool {
    u64::try_from(available).is_ok_and(|available| available >= hits)
}
