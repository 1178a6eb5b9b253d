//! Tidegate: a rate limit service for Envoy.
//!
//! # The map
//!
//! A request walks through the folders in this order:
//!
//! ```text
//! server/    bytes in, bytes out: the gRPC and HTTP ports, connections, TLS, draining
//!    |       wire.rs turns Envoy's message into a Request, and a Decision into Envoy's answer
//! request/   1 what is asked: domain, descriptors, entries, hits, each within its bounds
//! rules/     2 which limit: YAML files -> an immutable Ruleset; a descriptor's entries -> a rule
//! engine/    3 does it fit: keys, counters, the table, one decision over all keys of the request
//! ```
//!
//! `sources/` brings rules from files and tells when files change, `observe/` shows what happens, `settings/` holds flags
//! and environment, `cli/` has one file for each command.
//!
//! Dependencies point one way: `request <- rules <- engine <- {sources, server, observe} <- cli <- main`. `request`,
//! `rules` and `engine` do no IO, never await and never read a clock: the time is an argument.
//!
//! # Words
//!
//! | word | means |
//! |---|---|
//! | domain, descriptor, entry, hits | Envoy's words; hits is what a request costs |
//! | rule, ruleset, rule id | a configured limit, the compiled set, the rule's stable path `key=value/key2` |
//! | limit, window | how many, per how long |
//! | key | (domain, rule id, identifier, window); the identifier is the values that the rule leaves open |
//! | cell, sequence | the count of a key in one fixed window; `sequence = floor(now / window)` |
//! | effective | what counts against the limit now: `current + floor(previous * (D - elapsed) / D)` |
//! | slot, shard, table | where a key's counter lives, behind whose lock, all of them |

pub mod cli;
pub mod engine;
pub mod observe;
pub mod regional;
pub mod request;
pub mod rules;
pub mod server;
pub mod settings;
pub mod simulate;
pub mod sources;
