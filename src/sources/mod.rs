//! Where rules come from.

pub mod files;
