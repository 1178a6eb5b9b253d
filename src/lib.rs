//! Tidegate: a rate limit service for Envoy.
//!
//! # The map
//!
//! A request walks through the folders in this order:
//!
//! ```text
//! server/    what the world talks to. grpc/ drives connections and calls, rls/ turns Envoy's message into a Request and a
//!    |       Decision into Envoy's answer, service.rs decides and concludes, admission.rs says who may enter and wait
//! request/   1 what is asked: domain, descriptors, entries, hits, each within its bounds
//! rules/     2 which limit: YAML files -> an immutable Ruleset; a descriptor's entries -> a rule
//! engine/    3 does it fit: matching.rs finds the limits, decide/ makes one decision over all their keys, count/ has the
//!    |       arithmetic of a key, table/ is where keys live. Most requests end here
//! regional/  4 does the region agree: what the origin is asked and told, when, and what its answers mean;
//!    |       consultation.rs is the walk of a request over the stores
//! global/    5 do the regions agree: what is published and imported, when; no request ever waits for it
//! ```
//!
//! `sources/` brings rules from files and management servers, tells when they change and whether they fit. `observe/` counts
//! outcomes and hits, and shows what all parts count. `settings/` puts flags and environment together, each part of which is
//! defined by whoever uses it. `cli/` has a file or a folder for each command. `simulate/` runs many processes of `engine/`,
//! `regional/` and `global/` under virtual time and holds what they admit against an exact log.
//!
//! Everybody may use the leaves, which use nothing of the crate: `clock.rs` (moments), `secret.rs`, `pem_file.rs`,
//! `flag_value.rs` (how flags are typed), `complaints.rs` (what is logged once a minute), `measure/` (counters and
//! histograms) and `proto.rs` (Envoy's messages, generated).
//!
//! Dependencies point one way: leaves `<- request <- rules <- engine <- regional <- global <- sources <- observe <- server <-
//! settings <- cli <- main`; `simulate` uses what comes up to `global`, and only `cli`, tests and benches may use it. `request`, `rules`
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
//! | limit, window, terms | how many, per how long; both together with the algorithm and the burst |
//! | key | (domain, rule id, identifier, window, algorithm); the identifier is the values that the rule leaves open |
//! | space | domain and rule id, as one digest: what the keys of a rule have in common |
//! | cell, sequence | the count of a key in one fixed window; `sequence = floor(now / window)` |
//! | sub-cell | a sixteenth of an exact window |
//! | effective | what counts against the limit now: `current + floor(previous * (D - elapsed) / D)` |
//! | check, group | one limit that a request has to pass; the checks of one descriptor |
//! | quota | a group that denies only together with all other quota groups of the request |
//! | twins | checks of a request on the same key |
//! | case | one request to decide: its checks and groups, the table, the time, and what is known of the stores |
//! | decider | who decides a check: memory, a store, or the rule's outage policy |
//! | scope, reach, enforcement | what the rule asks for, who shares the count here, and what that makes of the limit |
//! | slot, shard, table | where a key's counter lives, behind whose lock, all of them |
//! | ledger | the table's door for stores and regions: verbs, no slots |
//! | weight | what a key takes in memory beside its slot |
//! | origin | the region's Redis |
//! | owner | the Redis that decides strict limits for everybody; with one region that is its origin |
//! | store | either of the two |
//! | lane | the connection to a server for one kind of call, so that replays never hold up checks, and neither of them heartbeats |
//! | node | a primary of a Cluster, or the only server of a store |
//! | silent, late | said of a connection over which nothing comes though an answer is owed; of a call whose time is up, and which may still arrive |
//! | parked | said of what a node is to be told that is given up: it waits until the node is back, or has a successor |
//! | window (of replays) | how many cells may be under way to the origin; it follows the round trip |
//! | tag | what the names of keys share that are in one slot of a Cluster: one of 256 |
//! | consultation | the walk of a request over the stores: whom to ask, what the answer means, when to look again |
//! | layer | what counts are shared through: the origin, the owner, the table of all regions |
//! | part | what a region has of a limit that is split, or of one that it can't share at the moment |
//! | regional part | what a process keeps of a key besides its count, to share it through a store |
//! | own, others | what this process has accepted in a cell, and what other processes have, as the origin last told |
//! | pending | the part of `own` that the origin has not acknowledged |
//! | urgent | pending hits that have used up half of their allowance: told at once, not with the next flush |
//! | allowance | how many hits may be pending on a key before the origin has to be asked |
//! | slack | the share of a limit that all allowances of a key together stay within |
//! | credit | the most that may ever be pending on a key in a process: its part of the slack |
//! | open, closed limit | one whose credit is at least one hit, so that memory decides far from the limit; one that is too small for that, so that the origin decides every request |
//! | usual decider | who decides on a limit's keys far from the limit: memory, the origin or the owner |
//! | heard of | said of a key: an answer of the origin had its current cell |
//! | due, held back | pending hits that go with the next flush; those that wait until there are more of them |
//! | patrol | the slow walk through the table that looks after what is held back |
//! | farewell | what a key that is given up for another still has to tell its store |
//! | holders | the processes that have a field in a key's cell at the origin: checks of the key are spaced by their number |
//! | seated | a cell of which the process knows its own field at the origin |
//! | epoch, floor | names one making of a cell at the origin; what the cell held at least before it was lost |
//! | replay, read | from memory to the origin, from the origin to memory (metrics say hydration) |
//! | call, ask, need | one message to a store; one request in it; one limit of that request |
//! | field | a process's own total in a cell at a store |
//! | charged ahead | said of hits that are in a process's field at a store before it admits them: it need not ask about these |
//! | pause | how long a key denies without asking, because its store has just denied as many hits |
//! | live, new, stranger | processes alive; one that may not know how many they are; one that never did |
//! | cut off | of a region: the others can't be heard |
//! | to heal | to tell the origin all counts again, because it may have lost some |
//! | quiet | in shadow: counts, and never denies |
//! | to shed | to answer a request by its policy, because too many wait for a store already |
//! | row | one region's count of one cell, in the table that regions share |
//! | publish, import | from memory to that table, from that table to memory |
//! | foreign | what other regions have counted; imported, never published again |
//! | contested | a key that another region counts too |
//! | speaker, voice | the one process of a region that publishes and imports for all of it; what the processes tell each other for that |
//! | to follow, alone | to leave that to the speaker; to publish and import for oneself, because no speaker is heard |
//! | lease | names the speaker at the origin, and ends by itself |
//! | mention | a cell that the speaker is told of, because other regions should know of it |
//! | spoken for, spoken cell | left to the speaker for now; what the speaker publishes |
//! | feed, entry, to hand on | what the speaker has heard of other regions, in a stream at the origin; a piece of it; to append to it |
//! | gap | something of the feed that a process has missed, and reads in the table |
//! | missing | counts of other regions that were left out here, and are looked up by name |
//! | pass | a reading of the whole table, or of all rows of some rules, in one part or several |

// The surface is chosen: `pub` is what the binary, integration/, benches/ and fuzz/ use. The compiler sees when nobody uses the rest.
#![warn(unreachable_pub)]

// What is both part of the tests here and of `fuzz/` names the crate from outside.
#[cfg(test)]
extern crate self as tidegate;

pub mod cli;
pub mod clock;
pub(crate) mod complaints;
pub mod engine;
pub(crate) mod flag_value;
pub mod global;
pub(crate) mod measure;
pub mod observe;
pub(crate) mod pem_file;
#[rustfmt::skip]
pub mod proto;
pub mod regional;
pub mod request;
pub mod rules;
pub mod secret;
pub mod server;
pub(crate) mod settings;
pub mod simulate;
pub mod sources;
