//! Virtual time and everything that moves in it: requests, messages, timers and faults, in order of their moments.
//!
//! [`requests`] lets processes decide, [`origin`] carries calls to the [`servers`] of the stores, [`exchange`] rows to the table
//! that regions share, [`voice`] what processes tell each other about that, [`health`] lets processes find out how the stores
//! are, and [`trouble`] makes things go wrong. [`event`] has all that can happen.

mod event;
mod exchange;
mod health;
mod origin;
mod requests;
mod servers;
mod trouble;
mod voice;

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Now;
use crate::engine::reach::Store;
use crate::global::model::Rows;
use crate::regional::call::{OriginKey, ProcessId};
use crate::regional::node_map::NodeId;
use crate::regional::region::Region;
use crate::regional::wait_queue::AskOutcome;
use crate::rules::{Options, RuleText, Ruleset};
use crate::simulate::digest::Digest;
use crate::simulate::faults::{Fault, Network, Plant};
use crate::simulate::oracle::Oracle;
use crate::simulate::process::{KeyHits, Process, ProcessStart, with_request};
use crate::simulate::random::Random;
use crate::simulate::service_times::{ServiceTimes, TableTimes};
use crate::simulate::world::event::{Event, To};
use crate::simulate::world::exchange::TableServer;
use crate::simulate::world::servers::Servers;

/// When the true time begins: a whole number of days after 1970.
pub const START_MS: u64 = 20_000 * 24 * 60 * 60 * 1000;
/// Monotonic clocks start here, because zero stands for never, and because processes that are there from the start have
/// been there for a while.
const MONO_START_US: u64 = 10 * 3_600_000_000;
/// How often a copy of each server is made, for failovers to an older one.
const COPY_EVERY_US: u64 = 20_000;
const BEAT_EVERY_US: u64 = 1_000_000;
const BEAT_TIMEOUT_US: u64 = 500_000;
/// How long a clean stop may take.
const LEAVE_WITHIN_US: u64 = 2_000_000;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Decides everything random: two worlds with the same setup and requests run alike.
    pub seed: u64,
    /// How many regions, each with an origin of its own.
    pub regions: usize,
    /// How many processes each region has.
    pub processes: usize,
    /// A rule `k` in the domain `d`, as YAML of its `rate_limit`.
    pub limit: String,
    /// Likewise for a second rule `o`, if there is one: a request may ask for keys of both.
    pub other_limit: Option<String>,
    /// The slack of every process, in thousandths of a limit.
    pub slack_permille: u16,
    /// How messages travel, until [`Fault::Calm`] makes the network quiet.
    pub network: Network,
    /// How long a request waits for a store, unless it is about strict limits.
    pub deadline_us: u64,
    /// How long a request about strict limits waits for the store that decides them.
    pub strict_deadline_us: u64,
    /// Strict limits have an owner, which all regions ask.
    pub has_owner: bool,
    /// The stores are Clusters: keys of one request may be in different slots.
    pub is_cluster: bool,
    /// How many nodes each store has, if it is a Cluster.
    pub nodes: usize,
    /// How many requests may be open in a process, which bounds those that wait.
    pub in_flight_max: usize,
    /// How many keys a process holds at most.
    pub keys_max: usize,
    /// `None` in an honest run.
    pub plant: Option<Plant>,
    /// `None`: the stores take no time for what they are asked.
    pub service: Option<ServiceTimes>,
    /// Likewise the server of the table that regions share.
    pub table_service: Option<TableTimes>,
}

impl Setup {
    pub fn new(seed: u64, processes: usize, limit: &str) -> Setup {
        Setup {
            seed,
            regions: 1,
            processes,
            limit: limit.to_owned(),
            other_limit: None,
            slack_permille: 100,
            network: Network::QUIET,
            deadline_us: 10_000,
            strict_deadline_us: 10_000,
            has_owner: false,
            is_cluster: false,
            nodes: 1,
            in_flight_max: usize::MAX,
            keys_max: 10_000,
            plant: None,
            service: None,
            table_service: None,
        }
    }
}

/// A region, as far as it is not its processes.
#[derive(Debug)]
struct Home {
    /// The region's Redis.
    servers: Servers,
    /// Until when nothing goes from this region to the table.
    cut_there_us: u64,
    /// Until when nothing comes back from the table.
    cut_back_us: u64,
}

/// Names the connections that a process has to a server for one kind of call.
type Line = (To, Store, NodeId, bool);

/// The simulated regions.
#[derive(Debug)]
pub struct World {
    setup: Setup,
    ruleset: Ruleset,
    random: Random,
    now_us: u64,
    /// By moment, then in the order in which they were made.
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    /// By place: region 0 first, `Setup::processes` of each. A process that is replaced leaves its place to the next.
    pub processes: Vec<Process>,
    homes: Vec<Home>,
    /// Decides strict limits for all regions, if they have an owner.
    owner: Servers,
    /// Copies of the origins are kept, because a failover wants one.
    is_copied: bool,
    /// The table that regions share.
    pub rows: Rows,
    /// The server that has the table.
    table: TableServer,
    /// How many processes were started so far.
    generation: u64,
    /// When each process next looks what it has to tell the others of its region.
    next_voice: BTreeMap<To, u64>,
    /// Until when processes do nothing about other regions.
    paused: BTreeMap<To, u64>,
    /// When each process polls each store the next time.
    next_poll: BTreeMap<(usize, Store), u64>,
    /// For each process, until when it may take to stop; `None`: it does not stop.
    leaving: Vec<Option<u64>>,
    /// Processes that have stopped cleanly: nothing of what they have sent is under way any more.
    left: BTreeSet<ProcessId>,
    /// Keys that replays on their way tell a store of, and who sent them.
    told_under_way: BTreeSet<(To, OriginKey)>,
    /// When anything last came over the connections of processes, in monotonic time.
    heard: BTreeMap<Line, u64>,
    /// When the call was sent that is being answered, if one is.
    replied_to_us: Option<u64>,
    /// The log to compare with.
    pub oracle: Oracle,
    /// What was decided and sent so far.
    pub digest: Digest,
}

impl World {
    pub fn new(setup: Setup) -> World {
        let other = setup.other_limit.as_ref().map(|limit| format!(", {{key: o, rate_limit: {limit}}}"));
        let other = other.unwrap_or_default();
        let yaml = format!("domain: d\ndescriptors: [{{key: k, rate_limit: {}}}{other}]", setup.limit);
        let loaded = Ruleset::load(&[RuleText { name: "simulated".into(), text: yaml }], &Options::default());
        let Some(ruleset) = loaded.ruleset else { panic!("{:?}", loaded.problems) };
        let home = |nodes| Home { servers: Servers::new(nodes), cut_there_us: 0, cut_back_us: 0 };
        let mut world = World {
            random: Random::new(setup.seed),
            ruleset,
            now_us: 0,
            events: BTreeMap::new(),
            next_event: 0,
            processes: Vec::new(),
            homes: (0..setup.regions).map(|_| home(setup.nodes)).collect(),
            owner: Servers::new(1),
            is_copied: false,
            rows: Rows::default(),
            table: TableServer::default(),
            generation: 0,
            next_voice: BTreeMap::new(),
            paused: BTreeMap::new(),
            next_poll: BTreeMap::new(),
            leaving: vec![None; setup.processes * setup.regions],
            left: BTreeSet::new(),
            told_under_way: BTreeSet::new(),
            heard: BTreeMap::new(),
            replied_to_us: None,
            oracle: Oracle::default(),
            digest: Digest::default(),
            setup,
        };
        for process in 0..world.setup.processes * world.setup.regions {
            let started = world.start(process);
            for ago_us in [2 * BEAT_EVERY_US, BEAT_EVERY_US] {
                let then = Now { wall_ms: world.now_ms(), mono_us: MONO_START_US - ago_us };
                started.stores().for_each(|region| region.heartbeat_ended(true, then));
            }
            started.stores().for_each(Region::was_always_there);
            world.processes.push(started);
            world.plan_exchange(process);
            // After two heartbeats each process knows of everyone.
            world.at(0, Event::Beat { process });
            world.at(1000, Event::Beat { process });
            world.plan_polls(process);
            world.plan_maps(process);
        }
        world
    }

    fn start(&mut self, process: usize) -> Process {
        self.generation += 1;
        let start = ProcessStart {
            keys_max: self.setup.keys_max,
            slack_permille: self.setup.slack_permille,
            deadline_us: self.setup.deadline_us,
            strict_deadline_us: self.setup.strict_deadline_us,
            has_owner: self.setup.has_owner,
            is_cluster: self.setup.is_cluster,
            in_flight_max: self.setup.in_flight_max,
            seed: self.random.number(),
            generation: self.generation,
            region: self.region_of(process),
            regions: self.setup.regions,
        };
        let now = Now { wall_ms: self.now_ms(), mono_us: MONO_START_US + self.now_us };
        let map = self.homes[self.region_of(process)].servers.map();
        Process::new(start, map.clone(), &self.ruleset, now)
    }

    /// The region that a process is in.
    pub fn region_of(&self, process: usize) -> usize {
        // Those that have joined are in the last one.
        (process / self.setup.processes).min(self.setup.regions - 1)
    }

    fn home(&self, process: usize) -> &Home {
        &self.homes[self.region_of(process)]
    }

    /// The servers that a process reaches as this store.
    fn servers(&self, process: usize, store: Store) -> &Servers {
        match store {
            Store::Origin => &self.home(process).servers,
            Store::Owner => &self.owner,
        }
    }

    fn servers_mut(&mut self, process: usize, store: Store) -> &mut Servers {
        let region = self.region_of(process);
        match store {
            Store::Origin => &mut self.homes[region].servers,
            Store::Owner => &mut self.owner,
        }
    }

    /// The stores are Clusters.
    pub fn is_cluster(&self) -> bool {
        self.setup.is_cluster
    }

    pub fn now_ms(&self) -> u64 {
        START_MS + self.now_us / 1000
    }

    /// The time, counted from the start.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    fn now(&self, process: usize) -> Now {
        let wall_ms = self.now_ms().saturating_add_signed(self.processes[process].skew_ms);
        Now { wall_ms, mono_us: MONO_START_US + self.now_us }
    }

    fn to(&self, process: usize) -> To {
        To { process, generation: self.processes[process].generation }
    }

    fn is_there(&self, to: To) -> bool {
        self.processes[to.process].generation == to.generation
    }

    fn at(&mut self, at_us: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((at_us, self.next_event), event);
    }

    /// Has a request arrive at this time, counted from the start.
    pub fn request_at(&mut self, at_us: u64, process: usize, asked: KeyHits) {
        self.request_of_all_at(at_us, process, &[asked]);
    }

    /// Likewise with several descriptors.
    pub fn request_of_all_at(&mut self, at_us: u64, process: usize, asked: &[KeyHits]) {
        self.at(at_us, Event::Request { process, asked: asked.into() });
    }

    /// Has something go wrong at this time, counted from the start.
    pub fn fault_at(&mut self, at_us: u64, fault: Fault) {
        if matches!(fault, Fault::Failover { .. } | Fault::Promote { .. }) && !self.is_copied {
            self.is_copied = true;
            self.at(self.now_us, Event::Copy);
        }
        self.at(at_us, Event::Fault(fault));
    }

    /// Runs until that moment, counted from the start.
    pub fn run_until(&mut self, until_us: u64) {
        while let Some(next) = self.events.first_entry() {
            let (at_us, _) = *next.key();
            if at_us > until_us {
                break;
            }
            let event = next.remove();
            self.now_us = self.now_us.max(at_us);
            self.happen(event);
        }
        self.now_us = self.now_us.max(until_us);
    }

    fn happen(&mut self, event: Event) {
        if let Some(until_us) = self.paused_until_us(&event) {
            return self.at(until_us, event);
        }
        match event {
            Event::Request { process, asked } => self.request(process, asked),
            Event::CallArrives { from, store, call, sending } => self.call_arrives(from, store, &call, sending),
            Event::ReplyArrives { to, store, reply, sending } if self.is_there(to) => {
                let now = self.now(to.process);
                self.heard.insert((to, store, sending.node, sending.is_replay), now.mono_us);
                self.replied_to_us = Some(sending.sent_us);
                self.react(to.process, store, |region| region.replied(sending.id, &reply, now));
                self.replied_to_us = None;
            }
            Event::CallTimesOut { to, store, sending } if self.is_there(to) => {
                let now = self.now(to.process);
                let heard_us = self.heard.get(&(to, store, sending.node, sending.is_replay)).copied();
                if heard_us.is_none_or(|heard_us| heard_us < MONO_START_US + sending.sent_us) {
                    self.trouble(to);
                }
                self.react(to.process, store, |region| region.timed_out(sending.id, heard_us, now));
            }
            Event::CallFails { to, store, id } if self.is_there(to) => {
                let now = self.now(to.process);
                self.react(to.process, store, |region| region.failed(id, now));
            }
            Event::Deadline { to, place } if self.is_there(to) => {
                let now = self.now(to.process);
                let region = self.processes[to.process].store(place.store);
                if region.is_some_and(|region| region.give_up(place.id, now)) {
                    self.tell(to.process, place, AskOutcome::NoAnswer);
                }
            }
            // A poll that was planned before an earlier one took its place is not due any more.
            Event::Poll { to, store } if self.is_there(to) && self.next_poll_us(to.process, store) <= self.now_us => {
                self.next_poll.remove(&(to.process, store));
                let now = self.now(to.process);
                self.react(to.process, store, |region| region.poll(now));
            }
            Event::BeatFails { to, store, node } if self.is_there(to) => self.beat_fails(to, store, node),
            Event::ReplyArrives { .. }
            | Event::BeatFails { .. }
            | Event::CallTimesOut { .. }
            | Event::CallFails { .. }
            | Event::Deadline { .. }
            | Event::Poll { .. } => {}
            Event::Beat { process } => self.beat(process),
            Event::Copy => {
                let now_us = self.now_us;
                self.homes.iter_mut().for_each(|home| home.servers.copy(now_us));
                self.at(self.now_us + COPY_EVERY_US, Event::Copy);
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Publish { to } => self.publish(to),
            Event::RowsArrive { from, sending, sent_us } => self.rows_arrive(from, sending, sent_us),
            Event::RowsCommit { region, rows, dated_ms } => self.rows_commit(region, &rows, dated_ms),
            Event::RowsRepeat { region, rows } => self.rows_repeat(region, &rows),
            Event::RowsAnswered { to, sending, sent } => self.rows_answered(to, sending, sent),
            Event::Import { to } => self.import(to),
            Event::ReadArrives { from, reading, hearing, sent_us } => {
                self.read_arrives(from, reading, hearing, sent_us)
            }
            Event::ReadAnswered { to, reading, hearing, read } => self.read_answered(to, reading, hearing, read),
            Event::Seek { to, seeking } => self.seek(to, seeking),
            Event::Voice { to } => self.voice(to),
            Event::VoiceArrives { from, talking } => self.voice_arrives(from, talking),
            Event::VoiceAnswered { to, talking, reply } => self.voice_answered(to, &talking, reply.as_ref()),
            Event::CellsArrive { from, reads, sent_us } => self.cells_arrive(from, reads, sent_us),
            Event::CellsAnswered { to, reads, replies } => self.cells_answered(to, &reads, replies.as_deref()),
            Event::Feed { to } => self.feed(to),
            Event::Leave { to } => self.leave(to),
            Event::Probe { process } => self.probe(process),
            Event::ProbeEnds { to, store, node, is_success } => self.probe_ends(to, store, node, is_success),
            Event::BeatArrives { from, store, node } => self.beat_arrives(from, store, node),
            Event::ReadMap { to } => self.read_map(to),
            Event::MapArrives { to, map } => self.map_arrives(to, map),
        }
    }

    /// Hits of a process that the origin has not acknowledged.
    pub fn pending(&self, process: usize) -> u64 {
        self.processes[process].engine.table().pending_hits()
    }

    /// Has all processes tell what they hold back, as if each were about to stop.
    pub fn release_held(&mut self) {
        self.processes.iter().flat_map(Process::stores).for_each(|region| region.release_held());
    }

    /// Has all processes hear again how every key stands that they have told of.
    pub fn read_again(&mut self) {
        self.processes.iter().flat_map(Process::stores).for_each(|region| region.heal());
    }

    /// How many keys the processes have still to look at, to tell an origin again what it has lost.
    pub fn keys_to_heal(&self) -> u64 {
        self.processes.iter().map(|process| process.region.keys_to_heal()).sum()
    }

    /// How a process counts a key now, without changing its table; `None` if it does not match.
    pub fn view(&self, process: usize, key: usize) -> Option<u64> {
        let now_ms = self.now(process).wall_ms;
        let engine = &self.processes[process].engine;
        let asked = [KeyHits { key, hits: 1 }];
        let peeked = with_request(&asked, |request| engine.peek(&self.ruleset, request, false, now_ms));
        Some(peeked.first()?.first()?.counted)
    }

    /// The hits and refunds that the origins hold of all keys in all windows.
    pub fn origin_total(&self) -> (u64, u64) {
        let totals = self.homes.iter().flat_map(|home| home.servers.in_use()).map(|(_, server)| server.origin.totals());
        totals.fold((0, 0), |sum, (hits, refunds)| (sum.0 + hits, sum.1 + refunds))
    }

    /// Which nodes of a Cluster have the first so many keys to begin with.
    pub fn nodes_at_first(&self, keys: usize) -> Vec<NodeId> {
        let map = Servers::new(self.setup.nodes).map().clone();
        let stranger = Process::new(self.processes[0].start, map.clone(), &self.ruleset, self.now(0));
        (0..keys).map(|key| map.of(stranger.slot_of(&self.ruleset, key, self.now(0)))).collect()
    }

    /// The hits that some nodes of the Clusters hold.
    pub fn node_totals(&self, is_wanted: impl Fn(NodeId) -> bool) -> u64 {
        let servers = self.homes.iter().flat_map(|home| home.servers.in_use());
        servers.filter(|(id, _)| is_wanted(*id)).map(|(_, server)| server.origin.totals().0).sum()
    }

    /// The whole hits that the origins hold in buckets, and the most fields that one bucket has.
    pub fn origin_levels(&self) -> (u64, usize) {
        let levels = self.homes.iter().flat_map(|home| home.servers.in_use()).map(|(_, server)| server.origin.levels());
        levels.fold((0, 0), |sum, (level, fields)| (sum.0 + level, sum.1.max(fields)))
    }

    /// How many requests of a thousand had to ask.
    pub fn asked_permille(&self) -> u64 {
        self.oracle.asked * 1000 / self.oracle.requests.max(1)
    }
}
