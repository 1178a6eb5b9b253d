//! Counters and histograms that cost a request next to nothing. Each part of the crate owns its own; `observe/` shows them.

pub(crate) mod histogram;
pub(crate) mod stripes;
pub(crate) mod times;
