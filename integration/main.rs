//! Tidegate from outside: real processes, real sockets, and what clients and operators see of them.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![expect(clippy::disallowed_types, reason = "a test should fail when another thread of it has panicked with a lock")]

mod commands;
mod envoy;
mod examples;
mod global;
mod kubernetes;
mod policy;
mod region;
mod server;
mod support;
mod tidy;
