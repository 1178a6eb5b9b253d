//! Where rules come from, and when files change.

pub mod changes;
pub mod files;
pub mod trail;
