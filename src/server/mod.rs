//! What the world talks to: the ports, and how they open, answer and close.

pub mod admin;
pub mod drain;
pub mod grpc;
pub mod http;
pub mod listener;
pub mod log_budget;
pub mod problem_body;
pub mod reload;
pub mod rls;
pub mod service;
pub mod socket_file;
pub mod socket_settings;
pub mod tls;
