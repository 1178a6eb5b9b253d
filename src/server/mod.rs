//! What the world talks to: the ports, and how they open, answer and close.

pub mod admin;
pub mod call;
pub mod connection;
pub mod connection_stats;
pub mod drain;
pub mod explain;
pub mod grpc;
pub mod http;
pub mod metadata;
pub mod reload;
pub mod service;
pub mod wire;
