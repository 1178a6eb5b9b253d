//! One process from outside: its ports, its rules, its clients, good and bad ones.

mod abuse;
mod account;
mod admin;
mod drain;
mod flood;
mod grpc;
mod hardening;
mod health;
mod inputs;
mod json;
mod overload;
mod reference;
mod reload;
mod rotation;
mod stalls;
mod surfaces;
mod tls;
mod unix_socket;
mod xds;
