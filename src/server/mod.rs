//! The ports that the world talks to: how they open, answer and close.

pub(crate) mod accept;
pub(crate) mod admin;
pub(crate) mod admission;
pub mod answer_options;
pub(crate) mod connection_stats;
pub(crate) mod drain;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod in_force;
pub(crate) mod incomplete_calls;
pub(crate) mod line;
pub(crate) mod listener;
pub(crate) mod log_budget;
pub(crate) mod no_answer;
pub(crate) mod problem_body;
pub(crate) mod protobuf;
pub(crate) mod reload;
pub mod rls;
pub(crate) mod service;
pub(crate) mod socket_file;
pub(crate) mod socket_settings;
pub(crate) mod tls;
