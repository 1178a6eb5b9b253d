//! How things are measured: counters and histograms that cost a request next to nothing. What is measured belongs to whoever
//! does it; `observe/` shows it.

pub(crate) mod histogram;
pub(crate) mod stripes;
pub(crate) mod times;
