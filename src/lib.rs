//! Tidegate: a rate limit service for Envoy.

pub mod engine;
pub mod request;
pub mod rules;
