//! Traffic at a chosen pace to the processes of a fleet, and its ledger.
//!
//! Requests are sent when they are due, whether or not earlier ones have been answered, in frames made by hand: a full client
//! would need more of the machine than the services do.

use std::collections::HashMap;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::support::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
};
use crate::support::harness::{PATIENCE, ask_one, until};
use crate::support::ledger::{Entry, Ledger, Outcome, wall_us};

/// Connections to each process.
const LANES: usize = 2;
/// How many requests may be open on a connection: fewer than the 1,024 streams that the service allows, and so few small
/// messages that flow control never holds them up.
const OPEN_MAX: usize = 900;
const TICK: Duration = Duration::from_millis(1);
/// Requests that are late by more than this are never sent: the machine is too slow for the pace.
const BEHIND_MAX: Duration = Duration::from_millis(100);

/// Which requests are sent, and how fast.
#[derive(Clone)]
pub struct Traffic {
    /// Each request is one of these, at random.
    pub requests: Vec<RateLimitRequest>,
    /// Requests per second in all, evenly paced.
    pub rate: u64,
    pub seed: u64,
}

impl Traffic {
    /// Requests for one key of the domain `d`.
    pub fn on(descriptor: &str, rate: u64) -> Traffic {
        Traffic { requests: vec![ask_one(descriptor)], rate, seed: 1 }
    }

    /// Requests for this many keys: `a=0`, `a=1` and so on for `a`.
    pub fn over(key: &str, count: usize, rate: u64) -> Traffic {
        let requests = (0..count).map(|number| ask_one(&format!("{key}={number}"))).collect();
        Traffic { requests, rate, seed: 1 }
    }
}

/// Traffic that is being sent.
pub struct Load {
    shared: Arc<Shared>,
    sender: Option<JoinHandle<()>>,
}

struct Shared {
    lanes: RwLock<Vec<Arc<Lane>>>,
    is_over: AtomicBool,
    rate: AtomicU64,
    sent: AtomicU64,
    clock: Clock,
}

/// Wall time that does not jump.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    start_us: u64,
}

impl Clock {
    fn now_us(&self) -> u64 {
        self.start_us + u64::try_from(self.start.elapsed().as_micros()).expect("not that long")
    }
}

/// A connection to a process.
struct Lane {
    process: usize,
    stream: Mutex<TcpStream>,
    is_routed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: HashMap<u32, Entry>,
    done: Vec<Entry>,
}

impl Load {
    /// Starts to send to these processes.
    pub fn start(addresses: &[SocketAddr], traffic: Traffic) -> Load {
        let clock = Clock { start: Instant::now(), start_us: wall_us() };
        let shared = Arc::new(Shared {
            lanes: RwLock::default(),
            is_over: AtomicBool::new(false),
            rate: AtomicU64::new(traffic.rate),
            sent: AtomicU64::new(0),
            clock,
        });
        let mut load = Load { shared, sender: None };
        addresses.iter().for_each(|address| {
            load.add(*address);
        });
        let shared = load.shared.clone();
        load.sender = Some(std::thread::spawn(move || send(&shared, &traffic)));
        load
    }

    /// Sends for this long.
    pub fn run(addresses: &[SocketAddr], traffic: Traffic, time: Duration) -> Ledger {
        let load = Load::start(addresses, traffic);
        std::thread::sleep(time);
        load.finish()
    }

    /// Sends this many requests, however long that takes.
    pub fn send(addresses: &[SocketAddr], traffic: Traffic, requests: u64) -> Ledger {
        let load = Load::start(addresses, traffic);
        load.goes_on(requests);
        load.finish()
    }

    /// Sends to one more process. Returns its number in the ledger.
    pub fn add(&self, address: SocketAddr) -> usize {
        let process = self.shared.lanes.read().unwrap().iter().map(|lane| lane.process + 1).max().unwrap_or(0);
        for _ in 0..LANES {
            let lane = Arc::new(Lane::open(process, address));
            let (shared, read) = (self.shared.clone(), lane.clone());
            std::thread::spawn(move || read.read(&shared));
            self.shared.lanes.write().unwrap().push(lane);
        }
        process
    }

    /// Sends no more to a process, but still waits for its open requests.
    pub fn leave(&self, process: usize) {
        for lane in self.shared.lanes.read().unwrap().iter().filter(|lane| lane.process == process) {
            lane.is_routed.store(false, Ordering::SeqCst);
        }
    }

    /// Whether requests still go to a process. They do not when its connections have ended.
    pub fn routes_to(&self, process: usize) -> bool {
        let lanes = self.shared.lanes.read().unwrap();
        lanes.iter().any(|lane| lane.process == process && lane.is_routed.load(Ordering::SeqCst))
    }

    /// Waits until all requests that were sent to a process have ended.
    pub fn settled(&self, process: usize) {
        until(PATIENCE, "open requests are answered", || {
            let lanes = self.shared.lanes.read().unwrap();
            let is_idle = |lane: &Arc<Lane>| lane.process != process || lane.state.lock().unwrap().open.is_empty();
            lanes.iter().all(is_idle).then_some(())
        });
    }

    /// Goes on at another pace; 0 is a pause.
    pub fn set_rate(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::SeqCst);
    }

    pub fn now_us(&self) -> u64 {
        self.shared.clock.now_us()
    }

    /// Waits until this many more requests have been sent.
    pub fn goes_on(&self, requests: u64) {
        let goal = self.shared.sent.load(Ordering::Relaxed) + requests;
        until(PATIENCE, "the load goes on", || (self.shared.sent.load(Ordering::Relaxed) >= goal).then_some(()));
    }

    /// The requests that have ended so far.
    pub fn so_far(&self) -> Ledger {
        let lanes = self.shared.lanes.read().unwrap();
        Ledger::of(lanes.iter().flat_map(|lane| lane.state.lock().unwrap().done.clone()).collect())
    }

    /// Sends nothing more, and waits for open requests.
    pub fn finish(mut self) -> Ledger {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.sender.take().expect("it finishes once").join().expect("the sender did not fail");
        let processes: Vec<usize> = self.shared.lanes.read().unwrap().iter().map(|lane| lane.process).collect();
        processes.iter().for_each(|process| self.settled(*process));
        self.so_far()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for lane in self.shared.lanes.read().unwrap().iter() {
            let _ = lane.stream.lock().unwrap().shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Sends the requests that are due, tick by tick.
fn send(shared: &Shared, traffic: &Traffic) {
    let mut dice = StdRng::seed_from_u64(traffic.seed);
    let messages: Vec<Vec<u8>> = traffic.requests.iter().map(Message::encode_to_vec).collect();
    let hits: Vec<u64> = traffic.requests.iter().map(|request| u64::from(request.hits_addend.max(1))).collect();
    let headers = Frame::call(END_HEADERS, 0).payload;
    let mut next_stream: HashMap<*const Lane, u32> = HashMap::new();
    let (mut last, mut due) = (Instant::now(), 0.0);
    while !shared.is_over.load(Ordering::SeqCst) {
        let now = Instant::now();
        let rate = shared.rate.load(Ordering::SeqCst) as f64;
        due = (due + rate * (now - last).as_secs_f64()).min((rate * BEHIND_MAX.as_secs_f64()).max(1.0));
        last = now;
        let lanes: Vec<Arc<Lane>> = {
            let lanes = shared.lanes.read().unwrap();
            lanes.iter().filter(|lane| lane.is_routed.load(Ordering::SeqCst)).cloned().collect()
        };
        let mut batches: Vec<Vec<(u32, usize)>> = vec![Vec::new(); lanes.len()];
        while due >= 1.0 && !lanes.is_empty() {
            due -= 1.0;
            let lane = dice.random_range(0..lanes.len());
            let stream = next_stream.entry(Arc::as_ptr(&lanes[lane])).or_insert(1);
            batches[lane].push((*stream, dice.random_range(0..messages.len())));
            *stream += 2;
        }
        for (lane, batch) in lanes.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            let mut bytes = Vec::new();
            let sent_us = shared.clock.now_us();
            let mut state = lane.state.lock().unwrap();
            for (stream, key) in batch {
                // HTTP/2 allows a client to skip numbers of streams. A request that can't be sent is not in the ledger.
                if state.open.len() >= OPEN_MAX {
                    break;
                }
                bytes.extend(Frame::new(HEADERS, END_HEADERS, stream, headers.clone()).bytes());
                bytes.extend(Frame::message(stream, &messages[key]).bytes());
                let (process, hits) = (lane.process, hits[key]);
                let entry = Entry { key, process, hits, outcome: Outcome::Failed, sent_us, answered_us: sent_us };
                state.open.insert(stream, entry);
                shared.sent.fetch_add(1, Ordering::Relaxed);
            }
            drop(state);
            // If the connection is gone, its reader fails the requests.
            let _ = lane.stream.lock().unwrap().write_all(&bytes);
        }
        std::thread::sleep(TICK.saturating_sub(now.elapsed()));
    }
}

impl Lane {
    fn open(process: usize, address: SocketAddr) -> Lane {
        const INITIAL_WINDOW: u32 = 65_535;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the gRPC port answers");
        stream.set_nodelay(true).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        // All answers of a test fit into this window, so that it need not grow later.
        let window = Frame::window_update((1 << 31) - 1 - INITIAL_WINDOW);
        stream.write_all(&[PREFACE, &Frame::settings_of(&[]).bytes(), &window.bytes()].concat()).unwrap();
        Lane { process, stream: Mutex::new(stream), is_routed: AtomicBool::new(true), state: Mutex::default() }
    }

    /// Reads answers until the connection ends. Requests that are open then have failed.
    fn read(&self, shared: &Shared) {
        let stream = self.stream.lock().unwrap().try_clone().expect("a second handle");
        let mut stream = BufReader::with_capacity(1 << 16, stream);
        while let Ok(frame) = read_frame(&mut stream) {
            self.take(frame, shared.clock.now_us());
        }
        self.is_routed.store(false, Ordering::SeqCst);
        // A request that was being sent when the connection ended fails too, as soon as it is in `open`.
        loop {
            let answered_us = shared.clock.now_us();
            let mut state = self.state.lock().unwrap();
            let State { open, done } = &mut *state;
            done.extend(open.drain().map(|(_, entry)| Entry { answered_us, ..entry }));
            drop(state);
            if shared.is_over.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn take(&self, frame: Frame, answered_us: u64) {
        let reply = |frame: Frame| drop(self.stream.lock().unwrap().write_all(&frame.bytes()));
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => reply(Frame::new(SETTINGS, ACK, 0, vec![])),
            PING if frame.flags & ACK == 0 => reply(Frame::new(PING, ACK, 0, frame.payload)),
            GOAWAY => {
                self.is_routed.store(false, Ordering::SeqCst);
                let last = frame.number(0);
                let mut state = self.state.lock().unwrap();
                let State { open, done } = &mut *state;
                done.extend(open.extract_if(|stream, _| *stream > last).map(|(_, entry)| entry));
            }
            DATA => {
                // A message's length, then the overall code as its first field.
                let outcome = match frame.payload.get(5..7) {
                    Some([8, 1]) => Outcome::Admitted,
                    Some([8, 2]) => Outcome::Denied,
                    _ => Outcome::Failed,
                };
                if let Some(entry) = self.state.lock().unwrap().open.get_mut(&frame.stream) {
                    entry.outcome = outcome;
                }
            }
            RST_STREAM => self.end(frame.stream, answered_us),
            _ => {}
        }
        if [DATA, HEADERS].contains(&frame.kind) && frame.flags & END_STREAM != 0 {
            self.end(frame.stream, answered_us);
        }
    }

    fn end(&self, stream: u32, answered_us: u64) {
        let mut state = self.state.lock().unwrap();
        if let Some(entry) = state.open.remove(&stream) {
            state.done.push(Entry { answered_us, ..entry });
        }
    }
}

fn read_frame(stream: &mut impl Read) -> std::io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload)?;
    let id = u32::from_be_bytes(head[5..].try_into().map_err(|_| ErrorKind::InvalidData)?);
    Ok(Frame::new(head[3], head[4], id, payload))
}
