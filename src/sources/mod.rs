//! Where rules come from, when files change, and what rules have to fit into.

pub mod changes;
pub mod files;
pub mod load_status;
pub mod path_snapshot;
pub mod rule_source;
pub mod runtime;
pub mod settings;
pub mod surroundings;
pub mod xds;
