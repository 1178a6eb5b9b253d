//! The scripts in a real Redis: the same calls to the script and to the model, every reply compared.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{Connection, RedisResult};
use smallvec::smallvec;
use tempfile::TempDir;

use super::*;
use crate::engine::reach::Store;
use crate::engine::tests::seed;
use crate::regional::call::{Ask, Need};
use crate::regional::model::Origin;

/// A Redis for one test, which ends with it.
struct Server {
    child: Child,
    connection: Connection,
    /// When keys expire that a frozen script has written.
    expires_at_ms: BTreeMap<Vec<u8>, u64>,
    _directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start() -> Server {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("redis");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).arg("--dir").arg(directory.path());
        let child = command.stdout(Stdio::null()).stdin(Stdio::null()).spawn().expect("redis-server is installed");
        let client = redis::Client::open(format!("redis+unix://{}", socket.display())).expect("an address");
        let deadline = Instant::now() + Duration::from_secs(60);
        let connection = loop {
            match client.get_connection() {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < deadline, "redis-server does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Server { child, connection, expires_at_ms: BTreeMap::new(), _directory: directory }
    }

    fn eval(&mut self, source: &str, invocation: &Invocation) -> RedisResult<Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(source).arg(invocation.keys.len()).arg(&invocation.keys).arg(&invocation.args);
        command.query(&mut self.connection)
    }

    fn call(&mut self, call: &Call) -> Reply {
        let value = self.eval(ORIGIN, &encode(call)).expect("the script answers");
        decode(call, &value).expect("the answer is a reply")
    }

    /// Calls at this time, by which keys expire too.
    fn call_at(&mut self, call: &Call, time_ms: u64) -> Reply {
        self.set_time(time_ms);
        let is_over = |(_, at_ms): &(&Vec<u8>, &u64)| **at_ms <= time_ms;
        let expired: Vec<Vec<u8>> = self.expires_at_ms.iter().filter(is_over).map(|(key, _)| key.clone()).collect();
        for key in expired {
            let () = self.command(&[b"DEL", &key]);
            self.expires_at_ms.remove(&key);
        }
        let value = self.eval(&frozen(ORIGIN), &encode(call)).unwrap_or_else(|error| panic!("{error} for {call:?}"));
        let kept: Vec<(Vec<u8>, u64)> = self.command(&[b"HGETALL", EXPIRES]);
        let () = self.command(&[b"DEL", EXPIRES]);
        self.expires_at_ms.extend(kept.into_iter().map(|(key, ttl_ms)| (key, time_ms + ttl_ms)));
        decode(call, &value).unwrap_or_else(|error| panic!("{error} for {call:?}"))
    }

    /// Sets the time that frozen scripts read.
    fn set_time(&mut self, time_ms: u64) {
        let (seconds, micros) = (time_ms / 1000, time_ms % 1000 * 1000);
        redis::cmd("MSET").arg(&[("s", seconds), ("us", micros)]).exec(&mut self.connection).expect("the time is set");
    }

    fn command<T: redis::FromRedisValue>(&mut self, words: &[&[u8]]) -> T {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        command.query(&mut self.connection).expect("the server answers")
    }
}

/// Where a frozen script notes how long to keep its cells.
const EXPIRES: &[u8] = b"expires";

/// A script that reads the time from keys, and leaves it to the test to let cells expire.
fn frozen(script: &str) -> String {
    let frozen = script.replace("call('TIME')", "call('MGET', 's', 'us')");
    assert_ne!(frozen, script);
    let frozen = frozen.replace("call('PEXPIRE', cell.key,", "call('HSET', 'expires', cell.key,");
    let frozen = frozen.replace("call('PEXPIRE', cell.before_key,", "call('HSET', 'expires', cell.before_key,");
    let noted = "call('SET', key, made) call('HSET', 'expires', key, ttl_ms)";
    frozen.replace("call('SET', key, made, 'PX', ttl_ms)", noted)
}

const WINDOW_MS_MAX: u64 = 31_622_400_000;

/// Random calls about few keys, which often fill, repeat each other and lie about the past.
struct Chaos {
    rng: StdRng,
    /// The epochs of the last replies, so that calls know some of them.
    epochs: BTreeMap<(OriginKey, u64), u64>,
    /// The origin's time.
    time_ms: u64,
}

impl Chaos {
    /// Mostly small, sometimes near or above what can be counted.
    fn count(&mut self) -> u64 {
        match self.rng.random_range(0..40) {
            0 => u64::MAX,
            1 => COUNT_MAX - self.rng.random_range(0..20),
            2 => self.rng.random_range(0..=COUNT_MAX),
            3 => 1 << self.rng.random_range(0..53),
            4..=9 => self.rng.random_range(0..5_000_000_000),
            10..=19 => 0,
            _ => self.rng.random_range(0..30),
        }
    }

    fn limit(&mut self) -> u32 {
        match self.rng.random_range(0..8) {
            0 => u32::MAX,
            1 => self.rng.random_range(0..=u32::MAX),
            2 => 0,
            _ => self.rng.random_range(0..200),
        }
    }

    /// What most processes tell: a little more than before, of a cell that nobody has lost.
    fn ordinary(&mut self, key: OriginKey, sequence: u64) -> CellUpdate {
        let own = self.rng.random_range(0..60);
        let window = WindowUpdate { sequence, ttl_ms: 10_000 * WINDOW_MS_MAX, ..WindowUpdate::default() };
        let is_heard_of = self.rng.random_range(0..3) > 0;
        CellUpdate {
            is_seated: true,
            own,
            acked: own.saturating_sub(self.rng.random_range(0..3)),
            epoch: self.epochs.get(&(key, sequence)).copied().filter(|_| is_heard_of).unwrap_or_default(),
            floor: self.rng.random_range(0..100),
            shape: CellShape::Window(window),
            ..CellUpdate::default()
        }
    }

    fn told(&mut self, key: OriginKey, sequence: u64) -> CellUpdate {
        match self.rng.random_range(0..8) {
            0..=2 if sequence > 0 => return self.ordinary(key, sequence),
            3 if sequence > 0 => {
                let window = WindowUpdate { sequence, ttl_ms: 10_000 * WINDOW_MS_MAX, ..WindowUpdate::default() };
                let is_seated = self.rng.random_range(0..2) > 0;
                return CellUpdate { is_seated, shape: CellShape::Window(window), ..CellUpdate::default() };
            }
            _ => {}
        }
        let epoch = match self.rng.random_range(0..8) {
            0 | 1 => 0,
            2 => self.count(),
            3 | 4 => self.epochs.values().nth(self.rng.random_range(0..20)).copied().unwrap_or_default(),
            _ => self.epochs.get(&(key, sequence)).copied().unwrap_or_default(),
        };
        let has_refunds = self.rng.random_range(0..3) == 0;
        let refund = |chaos: &mut Chaos| if has_refunds { chaos.count() } else { 0 };
        CellUpdate {
            is_seated: self.rng.random_range(0..4) > 0,
            own: self.count(),
            acked: self.count(),
            epoch,
            floor: self.count(),
            asked: refund(self),
            asked_acked: refund(self),
            shape: match sequence {
                0 => CellShape::Bucket(BucketUpdate { floor_rest: self.count(), level: self.count() }),
                _ => CellShape::Window(WindowUpdate {
                    sequence,
                    refunds_floor: refund(self),
                    // The cell outlasts the test.
                    ttl_ms: 10_000 * WINDOW_MS_MAX,
                    row: Counts { hits: refund(self), refunds: refund(self) },
                    foreign: refund(self),
                }),
            },
        }
    }

    fn part(&mut self, number: u8) -> CallKey {
        let window_ms = [1000, 60_000, 31_622_400_000, 31_622_399_999, 997][usize::from(number) % 5];
        let key = OriginKey([number; 20]);
        let newest = 100 + self.rng.random_range(0..3);
        let (measure, sequences) = match number % 4 {
            0 => (Measure::Sum, (newest - [0, 0, 1, 16][self.rng.random_range(0..4)]..=newest).rev().collect()),
            1 => {
                let left_ms = self.rng.random_range(0..=window_ms);
                (Measure::Sliding { left_ms }, (newest - self.rng.random_range(0..2)..=newest).rev().collect())
            }
            2 => (Measure::Gcra { limit: self.limit(), burst: self.limit() }, vec![0]),
            _ => {
                let newest = newest + self.rng.random_range(0..20);
                let oldest = newest - [0, 1, 16][self.rng.random_range(0..3)];
                let is_told = |sequence: &u64| *sequence == newest || self.rng.random_range(0..3) > 0;
                (Measure::Exact, (oldest..=newest).rev().filter(is_told).collect::<Vec<u64>>())
            }
        };
        let cells = sequences.into_iter().map(|sequence| self.told(key, sequence)).collect();
        CallKey { key, window_ms, measure, cells }
    }

    /// Mostly moves the time on a little; now and then far forward, or back.
    fn pass_time(&mut self) {
        self.time_ms = match self.rng.random_range(0..240) {
            0 => self.time_ms.saturating_sub(self.rng.random_range(0..100_000)),
            1 => self.time_ms + self.rng.random_range(0..WINDOW_MS_MAX),
            2 => [1_700_000_000_000, 1_893_455_999_000, 2_208_988_800_000][self.rng.random_range(0..3)],
            3..=6 => self.time_ms + self.rng.random_range(0..100_000),
            7 => self.time_ms - 900,
            _ => self.time_ms + self.rng.random_range(0..100),
        };
    }

    /// What most calls are: more hits of some keys, or a question about each of them.
    fn plain_call(&mut self) -> Call {
        let mut call = self.call();
        let is_check = self.rng.random_range(0..2) == 0;
        call.charges = true;
        call.parts.retain(|part| matches!(part.measure, Measure::Sum | Measure::Sliding { .. }));
        for part in &mut call.parts {
            part.cells.truncate(2);
            for place in 0..part.cells.len() {
                let sequence = part.cells[place].sequence();
                part.cells[place] = self.ordinary(part.key, sequence);
                if place > 0 && self.rng.random_range(0..2) == 0 {
                    let shape = CellShape::Window(WindowUpdate { sequence, ..WindowUpdate::default() });
                    part.cells[place] = CellUpdate { is_seated: true, shape, ..CellUpdate::default() };
                }
            }
        }
        call.asks.clear();
        for part in 0..if is_check { call.parts.len() } else { 0 } {
            let (hits, limit) = (self.rng.random_range(0..4), self.rng.random_range(0..200));
            let ahead = [0, 0, 1, 30][self.rng.random_range(0..4)];
            call.asks.push(Ask { needs: smallvec![Need { part, limit, hits, quota: None, ahead }] });
        }
        call
    }

    fn call(&mut self) -> Call {
        let first = self.rng.random_range(0..20);
        let parts: Vec<CallKey> = (0..self.rng.random_range(1..4)).map(|next| self.part((first + next) % 20)).collect();
        let mut asks = Vec::new();
        let has_asks = self.rng.random_range(0..3) > 0;
        for _ in 0..if has_asks { self.rng.random_range(0..4) } else { 0 } {
            let mut needs = SmallVec::new();
            for _ in 0..self.rng.random_range(0..4) {
                let quota = (self.rng.random_range(0..3) == 0).then(|| self.rng.random_range(0..3));
                let part = self.rng.random_range(0..parts.len());
                let hits = if self.rng.random_range(0..3) > 0 { self.rng.random_range(0..4) } else { self.count() };
                let is_raised = self.rng.random_range(0..6) == 0;
                let limit = if is_raised { self.count() } else { self.limit().into() };
                let ahead = [0, 0, 3, 400][self.rng.random_range(0..4)];
                needs.push(Need { part, limit, hits, quota, ahead });
            }
            asks.push(Ask { needs });
        }
        Call {
            process: ProcessId(match self.rng.random_range(0..20) {
                // Usually a new process.
                0 => self.rng.random_range(4..1000),
                _ => self.rng.random_range(0..4),
            }),
            nonce: self.rng.random_range(0..4096),
            charges: self.rng.random_range(0..5) > 0,
            parts,
            asks,
        }
    }
}

#[test]
fn the_script_and_the_model_say_the_same() {
    let mut server = Server::start();
    let seed = seed::seed();
    let mut chaos = Chaos { rng: StdRng::seed_from_u64(seed), epochs: BTreeMap::new(), time_ms: 1_700_000_000_000 };
    let mut model = Origin::default();
    let mut older = (model.clone(), Vec::new(), BTreeMap::new());
    let mut said: Vec<Call> = Vec::new();
    let (mut admitted, mut denied) = (0, 0);
    for number in 0..8000u64 {
        chaos.pass_time();
        let time_ms = chaos.time_ms;
        match chaos.rng.random_range(0..200) {
            0 => {
                let () = server.command(&[b"FLUSHALL"]);
                server.expires_at_ms.clear();
                model.clear();
            }
            1 => {
                let keys: Vec<Vec<u8>> = server.command(&[b"KEYS", b"tidegate:*"]);
                let copies = keys.into_iter().map(|key| {
                    let copy: Vec<u8> = server.command(&[b"DUMP", &key]);
                    (key, copy)
                });
                older = (model.clone(), copies.collect(), server.expires_at_ms.clone());
            }
            2 => {
                let () = server.command(&[b"FLUSHALL"]);
                for (key, copy) in &older.1 {
                    let () = server.command(&[b"RESTORE", key, b"100000000000", copy]);
                }
                server.expires_at_ms = older.2.clone();
                model = older.0.clone();
            }
            _ => {}
        }
        let is_repeated = chaos.rng.random_range(0..4) == 0 && !said.is_empty();
        let call = match said.len() {
            count if is_repeated => said[count.saturating_sub(1 + chaos.rng.random_range(0..8))].clone(),
            _ if chaos.rng.random_range(0..2) == 0 => chaos.plain_call(),
            _ => chaos.call(),
        };
        let expected = model.call(&call, time_ms);
        let reply = server.call_at(&call, time_ms);
        assert_eq!(reply, expected, "call {number} of seed {seed}: {call:?}");
        admitted += reply.verdicts.iter().filter(|verdict| verdict.is_admitted).count();
        denied += reply.verdicts.iter().filter(|verdict| !verdict.is_admitted).count();
        for (part, heard) in call.parts.iter().zip(&reply.parts) {
            chaos.epochs.extend(heard.iter().map(|heard| ((part.key, heard.sequence), heard.epoch)));
        }
        said.push(call);
    }
    assert!(admitted > 500 && denied > 500, "{admitted} admitted, {denied} denied");
}

fn sliding(own: u64) -> CallKey {
    let told = |sequence, own| {
        let window = WindowUpdate { sequence, ttl_ms: 120_000, ..WindowUpdate::default() };
        CellUpdate { is_seated: true, own, shape: CellShape::Window(window), ..CellUpdate::default() }
    };
    let cells = smallvec![told(8, own), told(7, 0)];
    CallKey { key: OriginKey([7; 20]), window_ms: 60_000, measure: Measure::Sliding { left_ms: 30_000 }, cells }
}

/// A bucket with this level by the process's own view.
fn bucket_with(level: u64) -> CellUpdate {
    let shape = CellShape::Bucket(BucketUpdate { floor_rest: 0, level });
    CellUpdate { is_seated: true, shape, ..CellUpdate::default() }
}

fn check(part: CallKey, hits: u64, limit: u64) -> Call {
    let asks = vec![Ask { needs: smallvec![Need { part: 0, limit, hits, quota: None, ahead: 0 }] }];
    Call { process: ProcessId(1), nonce: 5, charges: true, parts: vec![part], asks }
}

#[test]
fn cells_are_kept_as_long_as_told_and_buckets_until_they_are_empty() {
    let mut server = Server::start();
    let reply = server.call(&check(sliding(0), 1, 10));
    assert!(reply.verdicts[0].is_admitted);
    let key = cell_key(&OriginKey([7; 20]), 8);
    // A busy machine may take up to a minute.
    let is_near = |ttl_ms: i64, expected: i64| (expected - 60_000..=expected).contains(&ttl_ms);
    let ttl_ms: i64 = server.command(&[b"PTTL", &key]);
    assert!(is_near(ttl_ms, 120_000), "{ttl_ms}");

    let told = bucket_with(0);
    let measure = Measure::Gcra { limit: 10, burst: 100 };
    let bucket = CallKey { key: OriginKey([7; 20]), window_ms: 60_000, measure, cells: smallvec![told] };
    let reply = server.call(&check(bucket.clone(), 10, 10));
    assert_eq!(reply.parts[0][0].level, BucketLevel { ahead_ms: 0, whole: 10, rest: 0 });
    let ttl_ms: i64 = server.command(&[b"PTTL", &bucket_key(&OriginKey([7; 20]))]);
    assert!(is_near(ttl_ms, 120_000), "a minute to drain, a minute more: {ttl_ms}");

    // A rule that was set to 0 while its bucket was not empty.
    let blocked = CallKey { measure: Measure::Gcra { limit: 0, burst: 100 }, ..bucket };
    server.call(&check(blocked, 1, 10));
    let ttl_ms: i64 = server.command(&[b"PTTL", &bucket_key(&OriginKey([7; 20]))]);
    assert!(is_near(ttl_ms, 120_000), "a window, a minute more: {ttl_ms}");
}

/// One deploy follows another, and the bucket is never empty.
#[test]
fn a_bucket_in_use_forgets_processes_that_are_gone() {
    let mut server = Server::start();
    let mut model = Origin::default();
    let key = OriginKey([7; 20]);
    let mut time_ms = 1_700_000_000_000;
    let mut fields_max = 0;
    let mut level = BucketLevel::default();
    for start in 1..=60 {
        let mut known = bucket_with(1000);
        // The process tells four times and is killed.
        for _ in 0..4 {
            time_ms += 10_000;
            known.own += 3;
            let measure = Measure::Gcra { limit: 10, burst: 100 };
            let part = CallKey { key, window_ms: 60_000, measure, cells: smallvec![known] };
            let call = Call { process: ProcessId(start), nonce: 5, charges: true, parts: vec![part], asks: Vec::new() };
            let reply = server.call_at(&call, time_ms);
            assert_eq!(reply, model.call(&call, time_ms), "start {start}");
            let heard = reply.parts[0][0];
            known = CellUpdate { acked: heard.field, epoch: heard.epoch, ..known };
            level = heard.level;
            let fields = |names: Vec<Vec<u8>>| names.iter().filter(|name| name.len() > 1).count();
            let there = fields(server.command(&[b"HKEYS", &bucket_key(&key)]));
            let before = fields(server.command(&[b"HKEYS", &bucket_before_key(&key)]));
            assert!(there + before <= heard.holders as usize, "{there} and {before} of {heard:?}");
            fields_max = fields_max.max(heard.holders);
        }
    }
    // Three come in ten seconds, and ten drain in a minute.
    let drained = (60u64 * 4 - 1) * 10;
    assert_eq!(level.whole, 60 * 4 * 3 - drained.div_ceil(6), "nothing is lost or counted twice");
    assert!(fields_max <= 6, "{fields_max} of 60 processes");
}

#[test]
fn a_read_that_brings_nothing_new_writes_nothing() {
    let mut server = Server::start();
    server.call(&check(sliding(0), 3, 10));
    let key = cell_key(&OriginKey([7; 20]), 8);
    let () = server.command(&[b"PEXPIRE", &key, b"60000"]);
    let read = Call { asks: Vec::new(), ..check(sliding(3), 0, 0) };
    assert_eq!(server.call(&read).parts[0][0].sum, 3);
    let denied = server.call(&check(sliding(3), 8, 10));
    assert_eq!(denied.verdicts[0], AskVerdict { is_admitted: false, over: smallvec![0] });
    let ttl_ms: i64 = server.command(&[b"PTTL", &key]);
    assert!(ttl_ms <= 60_000, "{ttl_ms}");
}

#[test]
fn an_epoch_is_the_origins_time() {
    let mut server = Server::start();
    let (seconds, _): (u64, u64) = server.command(&[b"TIME"]);
    let epoch = server.call(&check(sliding(0), 1, 10)).parts[0][0].epoch;
    assert!((epoch / 4096 / 1000).abs_diff(seconds) < 60);
    assert_eq!(epoch % 4096, 5);
}

#[test]
fn a_malformed_call_changes_nothing_and_is_told_why() {
    let mut server = Server::start();
    let good = encode(&check(sliding(4), 1, 10));
    let bytes = &good.args[1];
    let with = |bytes: &[u8]| Invocation { args: vec![good.args[0].clone(), bytes.to_vec()], ..good.clone() };
    let changed = |at: usize, to: &[u8]| with(&[&bytes[..at], to, &bytes[at + to.len()..]].concat());
    let twice = Invocation { keys: vec![good.keys[0].clone(); 2], ..good.clone() };
    let of_others = Invocation { args: vec![b"p".to_vec(), bytes.clone()], ..good.clone() };
    let exact = encode(&check(CallKey { measure: Measure::Exact, ..sliding(4) }, 1, 10));
    let of_exact = |at: usize, to: u8| {
        let mut bytes = exact.args[1].clone();
        bytes[at] = to;
        Invocation { args: vec![exact.args[0].clone(), bytes], ..exact.clone() }
    };
    // After seven bytes of the head come a measure, a window and what it is measured by, each five, and a number of cells.
    const PART: usize = 7;
    const CELLS: usize = PART + 12;
    let need = bytes.len() - 21;
    let cases = [
        (Invocation { args: Vec::new(), ..good.clone() }, "2 arguments expected, not 0"),
        (of_others, "a process of 8 bytes expected, not 1"),
        (with(b"2,1"), "it ends before its parts"),
        (with(&bytes[..PART + 9]), "it ends in part 1"),
        (with(&bytes[..CELLS]), "it ends in part 1"),
        (changed(PART, &[9]), "the measure of part 1"),
        (changed(PART + 6, &60_001u64.to_le_bytes()[..5]), "the measure of part 1"),
        (changed(PART + 1, &[0; 10]), "the measure of part 1"),
        (changed(PART + 1, &[255; 5]), "the measure of part 1"),
        (changed(PART + 11, &[0]), "the cells of part 1"),
        (changed(CELLS, &[1]), "the cells of part 1"),
        (changed(CELLS, &[4]), "the cells of part 1"),
        (changed(CELLS, &[255]), "the cells of part 1"),
        (of_exact(PART + 6, 16), "the measure of part 1"),
        (of_exact(CELLS + 1, 1), "the cells of part 1"),
        (of_exact(exact.args[1].len() - 24, 0), "the cells of part 1"),
        (of_exact(exact.args[1].len() - 24, 17), "the cells of part 1"),
        (with(&[&bytes[..], &[1]].concat()), "bytes instead of"),
        (changed(need, &[2, 0]), "a need of ask 1"),
        (changed(need, &[0, 0]), "a need of ask 1"),
        (Invocation { keys: Vec::new(), ..good.clone() }, "0 keys instead of 2"),
        (twice, "comes twice"),
    ];
    for (invocation, expected) in cases {
        let error = server.eval(ORIGIN, &invocation).expect_err(expected).to_string();
        assert!(error.contains("malformed call") && error.contains(expected), "{error} instead of {expected}");
    }
    // Nor does any beginning of a good one.
    for length in 0..bytes.len() {
        let error = server.eval(ORIGIN, &with(&bytes[..length])).expect_err("it is cut off").to_string();
        assert!(error.contains("malformed call"), "{error} for {length} bytes");
    }
    let keys: u64 = server.command(&[b"DBSIZE"]);
    assert_eq!(keys, 0);
    server.eval(BEAT, &encode(&check(sliding(0), 1, 1))).expect_err("no heartbeat");
}

#[test]
fn heartbeats_count_the_live() {
    let mut server = Server::start();
    let (one, two) = (ProcessId(1), ProcessId(2));
    let beat = |process| encode_beat(Store::Origin, process);
    // The test sets the time: however slow the machine is, nobody is silent for too long.
    let frozen = frozen(BEAT);
    let mut tell = |time_ms, invocation| {
        server.set_time(time_ms);
        let beat = decode_beat(&server.eval(&frozen, &invocation).unwrap()).unwrap();
        assert_eq!(beat.time_ms, time_ms);
        (beat.was_known, beat.live)
    };
    assert_eq!(tell(10_000, beat(one)), (false, 1));
    assert_eq!(tell(10_000, beat(two)), (false, 2));
    assert_eq!(tell(10_500, beat(one)), (true, 2));
    assert_eq!(tell(11_000, encode_leave(Store::Origin, two)), (true, 1));
    assert_eq!(tell(11_000, beat(two)), (false, 2));
    assert_eq!(tell(13_000, beat(one)), (true, 2));
    assert_eq!(tell(14_000, beat(one)), (true, 2), "three seconds are not too long");
    assert_eq!(tell(14_001, beat(one)), (true, 1), "who was heard of longer ago is gone");
    let ttl_ms: i64 = server.command(&[b"PTTL", processes_key(Store::Origin).as_bytes()]);
    assert!((1..=60_000).contains(&ttl_ms), "{ttl_ms}");
    let now = decode_beat(&server.eval(BEAT, &beat(one)).unwrap()).unwrap();
    assert!(now.time_ms > 1_700_000_000_000, "the origin's own time");
}

#[test]
fn an_incarnation_is_made_with_the_data_and_lost_with_it() {
    let mut server = Server::start();
    let frozen = frozen(BEAT);
    let mut model = Origin::default();
    let incarnation = |server: &mut Server, model: &mut Origin, process, time_ms| {
        server.set_time(time_ms);
        let said = server.eval(&frozen, &encode_beat(Store::Origin, ProcessId(process))).unwrap();
        let beat = decode_beat(&said).unwrap();
        assert_eq!(beat, model.beat(ProcessId(process), time_ms));
        beat.incarnation
    };
    assert_eq!(incarnation(&mut server, &mut model, 1, 10_000), 10_000_000);
    assert_eq!(incarnation(&mut server, &mut model, 2, 11_000), 10_000_000);
    let ttl_ms: i64 = server.command(&[b"PTTL", incarnation_key(Store::Origin).as_bytes()]);
    assert!(ttl_ms > 3_600_000, "{ttl_ms}");
    let () = server.command(&[b"FLUSHALL"]);
    model.clear();
    assert_eq!(incarnation(&mut server, &mut model, 1, 12_000), 12_000_000);
    assert_eq!(incarnation(&mut server, &mut model, 2, 13_000), 12_000_000);
    let () = server.command(&[b"FLUSHALL"]);
    let left = server.eval(BEAT, &encode_leave(Store::Origin, ProcessId(1))).unwrap();
    assert_eq!(decode_beat(&left).unwrap().incarnation, 0, "who leaves makes none");
}

/// The slot of a key, as the Cluster specification defines it.
fn slot(key: &[u8]) -> u16 {
    let inside = |open: usize| key[open + 1..].iter().position(|byte| *byte == b'}').map(|length| (open + 1, length));
    let tag = key.iter().position(|byte| *byte == b'{').and_then(inside).filter(|(_, length)| *length > 0);
    let hashed = tag.map_or(key, |(start, length)| &key[start..start + length]);
    let crc16 = hashed.iter().fold(0u16, |crc, byte| {
        let shifted = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        (0..8).fold(crc ^ u16::from(*byte) << 8, shifted)
    });
    crc16 % 16_384
}

#[test]
fn all_cells_of_a_key_are_in_one_slot() {
    assert_eq!(slot(b"123456789"), 0x31c3);
    assert_eq!(slot(b"a{123456789}b"), 0x31c3);
    for store in [Store::Origin, Store::Owner] {
        assert_eq!(slot(incarnation_key(store).as_bytes()), slot(processes_key(store).as_bytes()));
    }
    let mut slots = Vec::new();
    for number in 0..50u8 {
        let key = OriginKey(std::array::from_fn(|place| number.wrapping_mul(place as u8 + 3)));
        let own = slot(&bucket_key(&key));
        assert!([0, 1, 99, u64::MAX].iter().all(|sequence| slot(&cell_key(&key, *sequence)) == own));
        assert!([0, 1, 99, u64::MAX].iter().all(|sequence| slot(&block_key(&key, *sequence)) == own));
        assert_eq!(slot(&bucket_before_key(&key)), own);
        slots.push(own);
    }
    slots.sort_unstable();
    slots.dedup();
    assert!(slots.len() > 40, "keys spread");
}

#[test]
fn keys_are_as_documented() {
    let key = OriginKey(*b"\x00\x10\x83\x10\x51\x87\x20\x92\x8b\x30\xd3\x8f\xfb\xff\xbf\x00\x00\x00\xff\xff");
    assert_eq!(cell_key(&key, 12), b"tidegate:3:{aa}:ABCDEFGHIJKLMNOP-_-_AAAA__8:12");
    assert_eq!(block_key(&key, 47), b"tidegate:3:{aa}:ABCDEFGHIJKLMNOP-_-_AAAA__8:x2");
    assert_eq!(bucket_key(&key), b"tidegate:3:{aa}:ABCDEFGHIJKLMNOP-_-_AAAA__8:g");
    assert_eq!(bucket_before_key(&key), b"tidegate:3:{aa}:ABCDEFGHIJKLMNOP-_-_AAAA__8:b");
}

/// A number of so many bytes, the lowest first.
fn packed(bytes: usize, number: u64) -> Vec<u8> {
    number.to_le_bytes()[..bytes].to_vec()
}

#[test]
fn no_answer_panics() {
    let call = check(sliding(0), 1, 10);
    let cell = |numbers: [u64; 5]| [vec![2], numbers.map(|number| packed(7, number)).concat(), packed(3, 1)].concat();
    let verdict = [packed(1, 0), packed(2, 1), packed(2, 0)].concat();
    let good = [cell([9, 1, 1, 0, 0]), vec![1], packed(7, 7), packed(3, 1), verdict].concat();
    let read = |bytes: &[u8]| decode(&call, &Value::BulkString(bytes.to_vec()));
    let reply = read(&good).unwrap();
    assert_eq!(
        reply.parts[0][0],
        CellState { sequence: 8, epoch: 9, sum: 1, field: 1, holders: 1, ..CellState::default() }
    );
    assert_eq!(reply.verdicts[0], AskVerdict { is_admitted: false, over: smallvec![0] });
    assert_eq!(reply.parts[0][1], CellState { sequence: 7, sum: 7, holders: 1, ..CellState::default() });
    for length in 0..good.len() {
        let error = read(&good[..length]).unwrap_err();
        assert!(error.to_string().contains("instead of more bytes"), "{error}");
    }
    let error = read(&[&good[..], &[0]].concat()).unwrap_err();
    assert_eq!(error.to_string(), "the origin answered 1 bytes more instead of the end of the answer");
    // No byte may be anything: kinds of cells, what is above any count, a verdict, how many are over, and which.
    for place in [0, 7, 14, 21, 28, 35, 39, 46, 50, 51, 52, 53, 54] {
        let mut bytes = good.clone();
        bytes[place] = 255;
        assert!(read(&bytes).is_err(), "255 at {place}");
    }
    let others = [
        Value::Nil,
        Value::Okay,
        Value::Int(i64::MIN),
        Value::Int(i64::MAX),
        Value::Double(1.0),
        Value::Boolean(true),
        Value::BulkString(b"1".to_vec()),
        Value::Array(Vec::new()),
        Value::Map(Vec::new()),
    ];
    for other in others {
        assert!(decode(&call, &other).is_err() && decode_beat(&other).is_err());
        assert!(decode_beat(&Value::Array(vec![Value::Int(1), Value::Int(1), Value::Int(1), other])).is_err());
    }
}

#[test]
fn no_block_panics() {
    let call = Call { asks: Vec::new(), ..check(CallKey { measure: Measure::Exact, ..sliding(4) }, 0, 0) };
    let counts = |counts: &[u64]| counts.iter().flat_map(|count| packed(7, *count)).collect::<Vec<u8>>();
    let short = [vec![1], counts(&[9]), counts(&[3; 16])].concat();
    let long = [vec![2], counts(&[9]), counts(&[4, 5, 2, 1, 8, 0].repeat(16))].concat();
    let record = |of: usize| [b"process ".to_vec(), counts(&vec![2; of])].concat();
    let heard = |blocks: [&[u8]; 4]| {
        let text = |bytes: &[u8]| [packed(2, bytes.len() as u64), bytes.to_vec()].concat();
        let [head, told, before, told_before] = blocks.map(text);
        let bytes = [head, told, packed(3, 1), before, told_before, packed(3, 1)].concat();
        decode(&call, &Value::BulkString(bytes))
    };
    let cells = heard([&short, &record(16), &long, &record(32)]).unwrap().parts[0].clone();
    // The newest is the ninth of its block.
    let state = CellState { epoch: 9, sum: 3, field: 2, holders: 1, ..CellState::default() };
    assert_eq!(cells[8], CellState { sequence: 0, ..state });
    assert_eq!(cells[9], CellState { sum: 9, refunds: 1, asked: 2, ..cells[8] });
    let cells = heard([&[], &[], &long, &[]]).unwrap().parts[0].clone();
    assert_eq!((cells[0].epoch, cells[0].sum, cells[9].sum, cells[9].field), (0, 0, 9, 0));
    for bytes in [&short, &long] {
        for length in 1..bytes.len() {
            heard([&bytes[..length], &[], &[], &[]]).expect_err("it is cut off");
        }
    }
    for length in 1..record(16).len() {
        heard([&short, &record(16)[..length], &[], &[]]).expect_err("it is cut off");
    }
    heard([&[3], &[], &[], &[]]).expect_err("no kind of block");
    heard([&[255; 120], &[], &[], &[]]).expect_err("no kind of block");
    let full = [vec![1], vec![255; 119]].concat();
    heard([&full, &[], &[], &[]]).expect_err("above any count");
}
