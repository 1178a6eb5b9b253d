//! Tidegate: a rate limit service for Envoy.

pub mod cli;
pub mod engine;
pub mod observe;
pub mod request;
pub mod rules;
pub mod server;
pub mod settings;
pub mod sources;
