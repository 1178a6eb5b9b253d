//! Tidegate: a rate limit service for Envoy.
//!
//! # The map
//!
//! A request walks through the folders in this order:
//!
//! ```text
//! server/    bytes in, bytes out: the gRPC and HTTP ports, connections, TLS, draining
//!    |       grpc/ drives connections and calls, http/ the other port
//!    |       rls/ turns Envoy's message into a Request, and a Decision into Envoy's answer, without copies between
//! request/   1 what is asked: domain, descriptors, entries, hits, each within its bounds
//! rules/     2 which limit: YAML files -> an immutable Ruleset; a descriptor's entries -> a rule
//! engine/    3 does it fit: keys, counters, the table, one decision over all keys of the request
//!    |       reach.rs says how far a limit reaches, allowance.rs whether memory may decide; most requests end here
//!    |       outage.rs decides by the rule's policy when nobody else can
//! regional/  4 does the region agree: what the origin is asked and told, when, and what its answers mean
//! global/    5 do the regions agree: what is published and imported, when; no request ever waits for it
//! ```
//!
//! `sources/` brings rules from files and management servers, tells when they change and whether they fit. `observe/` shows
//! what happens: it renders what the others count. `settings/` puts flags and environment together, each part of which is
//! defined by whoever uses it. `cli/` has a file or a folder for each command. `simulate/` runs many processes of `engine/`,
//! `regional/` and `global/` under virtual time and holds what they admit against an exact log.
//!
//! Everybody may use the leaves, which use nothing of the crate: `clock.rs` (moments), `secret.rs`, `pem_file.rs`,
//! `flag_value.rs` (how flags are typed), `complaints.rs` (what is logged once a minute), `measure/` (counters and
//! histograms) and `proto.rs` (Envoy's messages, generated).
//!
//! Dependencies point one way: leaves `<- request <- rules <- engine <- regional <- global <- sources <- observe <- server <-
//! settings <- cli <- main`; `simulate` uses what comes up to `global`, and only `cli` and tests use it. `request`, `rules`
//! and `engine` do no IO, never await and never read a clock: the time is an argument. Nor do `regional` and `global`, but for
//! `regional/redis/` and `global/mysql/`, which talk to the servers, and `driver.rs` and `metrics.rs` of both, which connect
//! and count. `integration/tidy.rs` holds the code against both rules.
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
//! | check, twins | one limit that a request has to pass; checks of a request on the same key |
//! | sub-cell | a sixteenth of an exact window |
//! | seated | a cell of which the process knows its own field at the origin |
//! | weight | what a key takes in memory beside its slot |
//! | slot, shard, table | where a key's counter lives, behind whose lock, all of them |
//! | origin | the region's Redis |
//! | owner | the Redis that decides strict limits for everybody; with one region that is its origin |
//! | store | either of the two |
//! | layer | what counts are shared through: the origin, the owner, the table of all regions. One that is down is fallen back from |
//! | part | what a region has of a limit that is split, or of one that it can't share at the moment |
//! | to shed | to answer a request by its policy, because too many wait for a store already |
//! | own, others | what this process has accepted in a cell, and what other processes have, as the origin last told |
//! | pending | the part of `own` that the origin has not acknowledged |
//! | allowance | how many hits may be pending on a key before the origin has to be asked |
//! | slack | the share of a limit that all allowances of a key together stay within |
//! | replay, hydrate | from memory to the origin, from the origin to memory |
//! | row | one region's count of one cell, in the table that regions share |
//! | publish, import | from memory to that table, from that table to memory |
//! | abroad | what other regions have counted; imported, never published again |
//! | contested | a key that another region counts too |
//! | missing | counts of other regions that were left out here, and are looked up by name |

// What is both part of the tests here and of `fuzz/` names the crate from outside.
#[cfg(test)]
extern crate self as tidegate;

pub mod cli;
pub mod clock;
pub mod complaints;
pub mod engine;
pub mod flag_value;
pub mod global;
pub mod measure;
pub mod observe;
pub mod pem_file;
#[rustfmt::skip]
pub mod proto;
pub mod regional;
pub mod request;
pub mod rules;
pub mod secret;
pub mod server;
pub mod settings;
pub mod simulate;
pub mod sources;
