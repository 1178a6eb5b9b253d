//! What the world talks to: the ports, and how they open, answer and close.

pub mod admin;
pub mod arrival;
pub mod call;
pub mod certificates;
pub mod connection;
pub mod connection_stats;
pub mod drain;
pub mod explain;
pub mod global;
pub mod grpc;
pub mod http;
pub mod listener;
pub mod log_budget;
pub mod metadata;
pub mod named_clients;
pub mod preface;
pub mod problem_body;
pub mod regional;
pub mod reload;
pub mod service;
pub mod skim;
pub mod socket_file;
pub mod tls;
pub mod wire;
