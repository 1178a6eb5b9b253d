//! Where rules come from, when files change, and what rules have to fit into.

pub(crate) mod changes;
pub(crate) mod deployment;
pub mod files;
pub(crate) mod load_status;
pub(crate) mod path_snapshot;
pub(crate) mod rule_source;
pub(crate) mod runtime;
pub(crate) mod settings;
pub(crate) mod xds;
