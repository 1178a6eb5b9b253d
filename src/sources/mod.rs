//! Where rules come from, and when files change.

pub mod changes;
pub mod config;
pub mod files;
pub mod runtime;
pub mod trail;
pub mod xds;
