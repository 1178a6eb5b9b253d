//! Where rules come from, when files change, and what rules have to fit into.

pub mod changes;
pub mod config;
pub mod files;
pub mod runtime;
pub mod surroundings;
pub mod trail;
pub mod xds;
