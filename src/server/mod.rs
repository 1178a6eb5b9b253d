//! What the world talks to: the ports, and how they open, answer and close.

pub mod connection;
pub mod drain;
pub mod grpc;
pub mod http;
pub mod metadata;
pub mod service;
pub mod wire;
