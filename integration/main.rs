//! Tidegate from outside: real processes, real sockets, and what clients and operators see of them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod account;
mod certificates;
mod commands;
mod drain;
mod envoy;
mod flood;
mod frames;
mod grpc;
mod hardening;
mod harness;
mod health;
mod json;
mod rotation;
mod surfaces;
mod tls;
mod unix_socket;
