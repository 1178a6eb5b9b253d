//! Tidegate from outside: real processes, real sockets, and what clients and operators see of them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

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
