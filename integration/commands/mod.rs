//! The commands as operators type them.

mod bench;
mod call;
mod check_policy;
mod closed_pipe;
mod extra_tags;
mod generate;
mod mysql;
mod ordinary_bench;
mod rls_bench;
mod rules;
mod status;
