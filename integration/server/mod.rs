//! One process from outside: its ports, its rules, its clients, good and bad ones.

pub mod abuse;
mod account;
mod admin;
pub mod drain;
mod flood;
mod grpc;
pub mod hardening;
mod health;
mod inputs;
mod json;
mod lasting;
mod overload;
mod reference;
pub mod reload;
mod rotation;
pub mod stalls;
mod surfaces;
mod tls;
mod unix_socket;
mod xds;
