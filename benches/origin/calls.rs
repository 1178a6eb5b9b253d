//! What a process tells and asks, over and over: calls as they leave it, and what it learns from the answers.

use redis::Value;
use smallvec::{SmallVec, smallvec};
use tidegate::engine::table::cell::{BucketUpdate, CellShape, CellUpdate, WindowUpdate};
use tidegate::regional::call::{Ask, Call, CallKey, Measure, Need, OriginKey, ProcessId};
use tidegate::regional::redis::{Invocation, decode, encode};

use crate::random::Random;
use crate::server::Server;

const WINDOW_MS: u64 = 60_000;
const TTL_MS: u64 = 3_600_000;
/// The newest window, or sub-cell.
const NEWEST: u64 = 487_655;
/// Never reached.
const LIMIT: u64 = 1 << 40;
/// Sub-cells of an exact window.
const SUB_CELLS: u64 = 17;

/// See [`Kind::Bare`]. What it writes is as long as what a told cell takes.
pub const BARE: &str = "redis.call('MGET', unpack(KEYS))
for number = 1, #KEYS do redis.call('SETRANGE', KEYS[number], '8', '1234567891234567891234') end
return ''";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// More hits of a key that the origin and the process know.
    Told,
    /// The first hits of a key.
    Made,
    /// A check of a key that is known, with the window before.
    WarmCheck,
    /// A check of a key that nobody has asked for.
    ColdCheck,
    /// More hits of an exact window with hits in all of its sub-cells.
    Exact,
    Bucket,
    /// A script that reads a string and writes a part of it, and decides nothing: what any script costs at least that keeps counts.
    Bare,
    /// What other services do: INCRBY and EXPIRE.
    Pair,
}

/// What the process knows of its keys.
pub struct Keys {
    kind: Kind,
    /// By the number of the key: the newest cell.
    cells: Vec<CellUpdate>,
    /// The next key that nobody has asked for.
    next: usize,
}

/// A call, or a pipeline of other commands, and the keys that it is about.
struct Sent {
    packed: Vec<u8>,
    answers: usize,
    call: Option<Call>,
    keys: Vec<usize>,
}

impl Keys {
    pub fn new(kind: Kind, count: usize) -> Keys {
        Keys { kind, cells: vec![fresh(kind, 0); count], next: 0 }
    }

    /// Has everything in Redis that is to be there before.
    pub fn prepare(&mut self, server: &mut Server, script: &str) -> anyhow::Result<()> {
        let all: Vec<usize> = (0..self.cells.len()).collect();
        let backs = match self.kind {
            Kind::Made | Kind::ColdCheck => return Ok(()),
            Kind::Exact => (0..SUB_CELLS).rev().collect(),
            Kind::WarmCheck => vec![1, 0],
            Kind::Told | Kind::Bare | Kind::Bucket | Kind::Pair => vec![0],
        };
        for back in backs {
            for some in all.chunks(100) {
                let sent = self.write_down(some, script, back);
                self.send(server, &sent)?;
            }
        }
        Ok(())
    }

    /// Sends so many calls about so many keys each, and answers the CPU time that it took for a key, in microseconds.
    pub fn round(
        &mut self,
        server: &mut Server,
        script: &str,
        calls: usize,
        keys: usize,
        random: &mut Random,
    ) -> anyhow::Result<f64> {
        let mut took_ns = 0.0;
        for _ in 0..calls {
            let some: Vec<usize> = match self.kind {
                Kind::Made | Kind::ColdCheck => {
                    self.next += keys;
                    (self.next - keys..self.next).collect()
                }
                _ => random.some(keys, self.cells.len()),
            };
            if self.next > self.cells.len() {
                self.cells.resize(2 * self.next, fresh(self.kind, 0));
            }
            let sent = self.write_down(&some, script, 0);
            let before = server.cpu()?;
            self.send(server, &sent)?;
            took_ns += (server.cpu()? - before).as_nanos() as f64;
        }
        Ok(took_ns / 1000.0 / (calls * keys) as f64)
    }

    fn send(&mut self, server: &mut Server, sent: &Sent) -> anyhow::Result<()> {
        let values = server.send(&sent.packed, sent.answers)?;
        let Some(call) = &sent.call else { return Ok(()) };
        let reply = decode(call, values.first().unwrap_or(&Value::Nil))?;
        for ((number, part), states) in sent.keys.iter().zip(&call.parts).zip(&reply.parts) {
            let cell = &mut self.cells[*number];
            let told = part.cells[0];
            if told.sequence() != cell.sequence() {
                continue;
            }
            let heard = states.iter().find(|state| state.sequence == told.sequence()).copied().unwrap_or_default();
            (cell.own, cell.acked, cell.epoch, cell.floor) = (heard.field, heard.field, heard.epoch, heard.sum);
        }
        Ok(())
    }

    /// The key's newest cell is `back` before the last one, so that those before it can be filled first.
    fn write_down(&self, some: &[usize], script: &str, back: u64) -> Sent {
        if self.kind == Kind::Pair {
            let mut pipeline = redis::pipe();
            for number in some {
                let key = format!("envoy_user_{number:027}_29913878");
                pipeline.cmd("INCRBY").arg(&key).arg(1).cmd("EXPIRE").arg(&key).arg(3600);
            }
            let answers = 2 * some.len();
            return Sent { packed: pipeline.get_packed_pipeline(), answers, call: None, keys: some.to_vec() };
        }
        if self.kind == Kind::Bare {
            let names = some.iter().map(|number| format!("tidegate:{{aa}}:{number:040}:29913878"));
            let mut command = redis::cmd("EVALSHA");
            command.arg(script).arg(some.len()).arg(names.collect::<Vec<_>>()).arg("process_").arg(vec![
                b'.';
                7 + 48
                    * some
                        .len()
            ]);
            return Sent { packed: command.get_packed_command(), answers: 1, call: None, keys: some.to_vec() };
        }
        let is_check = matches!(self.kind, Kind::WarmCheck | Kind::ColdCheck) && back == 0;
        let parts: Vec<CallKey> = some.iter().map(|number| self.part(*number, back, is_check)).collect();
        let need = |part: usize| Ask { needs: smallvec![Need { part, limit: LIMIT, hits: 1, quota: None, ahead: 0 }] };
        let asks = if is_check { (0..parts.len()).map(need).collect() } else { Vec::new() };
        let call = Call { process: ProcessId(0x7469_6465_6761_7465), nonce: 1, charges: true, parts, asks };
        let Invocation { keys, args } = encode(&call);
        let mut command = redis::cmd("EVALSHA");
        command.arg(script).arg(keys.len()).arg(&keys).arg(&args);
        Sent { packed: command.get_packed_command(), answers: 1, call: Some(call), keys: some.to_vec() }
    }

    fn part(&self, number: usize, back: u64, is_check: bool) -> CallKey {
        let mut key = [self.kind as u8; 20];
        key[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        let known = self.cells[number];
        let newest = match self.kind {
            _ if known.sequence() != NEWEST - back => fresh(self.kind, back),
            _ => known,
        };
        // A check brings what the process has, and asks for one more.
        let more = u64::from(!is_check);
        let mut cells: SmallVec<[CellUpdate; 2]> = smallvec![CellUpdate { own: newest.own + more, ..newest }];
        let measure = match self.kind {
            Kind::Exact => Measure::Exact,
            Kind::Bucket => Measure::Gcra { limit: 1_000_000, burst: 1_000_000 },
            _ => Measure::Sliding { left_ms: WINDOW_MS / 2 },
        };
        if is_check {
            cells.push(fresh(self.kind, 1));
        }
        CallKey { key: OriginKey(key), window_ms: WINDOW_MS, measure, cells }
    }
}

/// A cell that the process has not told.
fn fresh(kind: Kind, back: u64) -> CellUpdate {
    let shape = match kind {
        Kind::Bucket => CellShape::Bucket(BucketUpdate { floor_rest: 0, level: LIMIT }),
        _ => CellShape::Window(WindowUpdate { sequence: NEWEST - back, ttl_ms: TTL_MS, ..WindowUpdate::default() }),
    };
    CellUpdate { is_seated: true, shape, ..CellUpdate::default() }
}
