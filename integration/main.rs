//! Tidegate from outside: real processes, real sockets, and what clients and operators see of them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod abuse;
mod account;
mod admin;
mod bench;
mod bystander;
mod call;
mod certificates;
mod cluster;
mod commands;
mod cutting_proxy;
mod drain;
mod envoy;
mod flood;
mod frames;
mod grpc;
mod hardening;
mod harness;
mod health;
mod inputs;
mod json;
mod overload;
mod redis;
mod redis_cluster;
mod redis_connection;
mod reference;
mod reload;
mod rotation;
mod sentinels;
mod stalls;
mod stub;
mod surfaces;
mod tls;
mod unix_socket;
