//! What the world talks to: the ports, and how they open, answer and close.

pub mod accept;
pub mod admin;
pub mod admission;
pub mod answer_options;
pub mod connection_stats;
pub mod drain;
pub mod grpc;
pub mod http;
pub mod in_force;
pub mod incomplete_calls;
pub mod line;
pub mod listener;
pub mod log_budget;
pub mod no_answer;
pub mod problem_body;
pub mod protobuf;
pub mod reload;
pub mod rls;
pub mod service;
pub mod socket_file;
pub mod socket_settings;
pub mod tls;
