//! How calls are written for the origin's scripts, and how their answers are read.
//!
//! A call becomes the keys of its cells and two arguments: the process, and all numbers in one JSON array, which a script
//! reads in one step and an operator can read in `MONITOR`. The answer is a flat array of whole numbers, whose shape
//! follows from the call. `scripts/origin.lua` documents both.
//!
//! Numbers are bounded here, where they leave: a script counts exactly only up to [`COUNT_MAX`]. Every answer is
//! checked: an origin that answers anything else is an error, never a panic.

use std::fmt::{self, Write};

use redis::Value;
use smallvec::SmallVec;

use crate::engine::reach::Store;
use crate::engine::table::cell::{BucketLevel, BucketUpdate, CellShape, CellState, CellUpdate, WindowUpdate};
use crate::engine::table::foreign::Counts;
use crate::regional::call::{AskVerdict, COUNT_MAX, Call, CallKey, Measure, OriginKey, ProcessId, Reply};

/// Serves a [`Call`].
pub(crate) static ORIGIN: &str = include_str!("scripts/origin.lua");

/// Serves heartbeats.
pub(crate) static BEAT: &str = include_str!("scripts/beat.lua");

/// Takes a process's fields out.
pub(crate) static LEAVE: &str = include_str!("scripts/leave.lua");

/// The key under which an origin keeps the live processes.
pub(crate) const PROCESSES_KEY: &str = "tidegate:processes";

/// The key under which the owner of strict limits keeps them. Another one, because the owner may be a region's origin
/// too.
pub(crate) const STRICT_PROCESSES_KEY: &str = "tidegate:strict:processes";

fn processes_key(store: Store) -> &'static str {
    match store {
        Store::Origin => PROCESSES_KEY,
        Store::Owner => STRICT_PROCESSES_KEY,
    }
}

/// The key under which a store keeps its incarnation. In a Cluster it is in the slot that the processes are in.
pub(crate) fn incarnation_key(store: Store) -> String {
    format!("tidegate:incarnation:{{{}}}", processes_key(store))
}

/// The keys and arguments that a script is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    /// The script's KEYS, in the order of the call's parts and cells.
    pub keys: Vec<Vec<u8>>,
    /// The script's ARGV.
    pub args: Vec<Vec<u8>>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeatReply {
    /// The process was among the live ones. If not, it has just started, was silent for too long, or the origin has
    /// lost data.
    pub was_known: bool,
    /// How many processes live.
    pub live: u64,
    /// The origin's clock, in milliseconds since 1970.
    pub time_ms: u64,
    /// Names the data that the origin holds: if it is another one, what was there before is lost. 0: none was made, and
    /// a process that leaves makes none.
    pub incarnation: u64,
}

/// The origin answered something that no script of ours answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the origin answered {found} instead of {expected}")]
pub(crate) struct BadReply {
    /// What the script answers at this place, in words for the log.
    pub expected: &'static str,
    /// A number that is out of bounds, or the kind of value.
    pub found: String,
}

/// The key of a window's cell. The braces are a Cluster's hash tag: all cells of a key are in one slot.
pub(crate) fn cell_key(key: &OriginKey, sequence: u64) -> Vec<u8> {
    format!("tidegate:{{{}}}:{sequence}", Base64Key(key)).into_bytes()
}

/// The key of a bucket.
pub(crate) fn bucket_key(key: &OriginKey) -> Vec<u8> {
    format!("tidegate:{{{}}}:g", Base64Key(key)).into_bytes()
}

/// The key of a bucket's previous generation of fields.
pub(crate) fn bucket_before_key(key: &OriginKey) -> Vec<u8> {
    format!("tidegate:{{{}}}:b", Base64Key(key)).into_bytes()
}

/// An origin key in base64url without padding: 27 characters.
struct Base64Key<'a>(&'a OriginKey);

impl fmt::Display for Base64Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        for bytes in self.0.0.chunks(3) {
            let byte = |place: usize| u32::from(bytes.get(place).copied().unwrap_or_default());
            let group = byte(0) << 16 | byte(1) << 8 | byte(2);
            for digit in 0..=bytes.len() {
                f.write_char(char::from(ALPHABET[(group >> (18 - 6 * digit)) as usize % 64]))?;
            }
        }
        Ok(())
    }
}

/// A count, or the largest that the origin can hold.
pub(crate) fn bounded(count: u64) -> u64 {
    count.min(COUNT_MAX)
}

/// An update of a cell with its numbers cut to what the origin can hold.
pub(crate) fn bounded_update(update: &CellUpdate, window_ms: u64) -> CellUpdate {
    let shape = match update.shape {
        CellShape::Window(WindowUpdate { sequence, refunds_floor, ttl_ms, row, foreign }) => {
            CellShape::Window(WindowUpdate {
                sequence,
                refunds_floor: bounded(refunds_floor),
                // With 0 ms Redis would delete the cell at once.
                ttl_ms: ttl_ms.clamp(1, COUNT_MAX),
                row: Counts { hits: bounded(row.hits), refunds: bounded(row.refunds) },
                foreign: bounded(foreign),
            })
        }
        CellShape::Bucket(BucketUpdate { floor_rest, level }) => CellShape::Bucket(BucketUpdate {
            floor_rest: floor_rest.min(window_ms.saturating_sub(1)),
            level: bounded(level),
        }),
    };
    CellUpdate {
        is_seated: update.is_seated,
        own: bounded(update.own),
        acked: bounded(update.acked),
        epoch: bounded(update.epoch),
        floor: bounded(update.floor),
        asked: bounded(update.asked),
        asked_acked: bounded(update.asked_acked),
        shape,
    }
}

/// Writes a call for [`ORIGIN`].
pub(crate) fn encode(call: &Call) -> Invocation {
    let mut keys = Vec::new();
    let mut numbers = Numbers::new();
    numbers.extend([call.nonce.into(), call.charges.into(), call.parts.len() as u64]);
    for part in &call.parts {
        encode_part(part, &mut keys, &mut numbers);
    }
    numbers.push(call.asks.len() as u64);
    for ask in &call.asks {
        numbers.push(ask.needs.len() as u64);
        for need in &ask.needs {
            let quota = need.quota.map_or(0, |quota| u64::from(quota) + 1);
            numbers.extend([need.part as u64 + 1, bounded(need.limit), bounded(need.hits), quota]);
        }
    }
    Invocation { keys, args: vec![call.process.to_string().into_bytes(), numbers.into_json()] }
}

fn encode_part(part: &CallKey, keys: &mut Vec<Vec<u8>>, numbers: &mut Numbers) {
    let (measure, measured, burst) = match part.measure {
        Measure::Sum => (0, 0, 0),
        Measure::Sliding { left_ms } => (1, left_ms, 0),
        Measure::Gcra { limit, burst } => (2, limit.into(), burst.into()),
    };
    numbers.extend([measure, part.window_ms, measured, part.cells.len() as u64]);
    for update in &part.cells {
        let cell = bounded_update(update, part.window_ms);
        numbers.extend([cell.is_seated.into(), cell.own, cell.acked, cell.epoch, cell.floor]);
        numbers.extend([cell.asked, cell.asked_acked]);
        match cell.shape {
            CellShape::Window(WindowUpdate { sequence, refunds_floor, ttl_ms, row, foreign }) => {
                keys.push(cell_key(&part.key, sequence));
                numbers.extend([refunds_floor, ttl_ms, row.hits, row.refunds, foreign]);
            }
            CellShape::Bucket(BucketUpdate { floor_rest, level }) => {
                keys.extend([bucket_key(&part.key), bucket_before_key(&part.key)]);
                numbers.extend([floor_rest, level, burst, 0, 0]);
            }
        }
    }
}

/// Writes a heartbeat for [`BEAT`].
pub(crate) fn encode_beat(store: Store, process: ProcessId) -> Invocation {
    encode_sign(store, process, "beat")
}

/// Writes that a process leaves, for [`BEAT`].
pub(crate) fn encode_leave(store: Store, process: ProcessId) -> Invocation {
    encode_sign(store, process, "leave")
}

fn encode_sign(store: Store, process: ProcessId, what: &str) -> Invocation {
    let keys = vec![processes_key(store).into(), incarnation_key(store).into_bytes()];
    Invocation { keys, args: vec![process.to_string().into_bytes(), what.into()] }
}

/// A JSON array of numbers, while it is written.
struct Numbers(String);

impl Numbers {
    fn new() -> Numbers {
        Numbers(String::with_capacity(256))
    }

    fn push(&mut self, number: u64) {
        let before = if self.0.is_empty() { '[' } else { ',' };
        // Writing to a string does not fail.
        let _ = write!(self.0, "{before}{number}");
    }

    fn extend<const N: usize>(&mut self, numbers: [u64; N]) {
        numbers.into_iter().for_each(|number| self.push(number));
    }

    fn into_json(mut self) -> Vec<u8> {
        self.0.push(']');
        self.0.into_bytes()
    }
}

/// Reads what [`ORIGIN`] answered to a call.
pub(crate) fn decode(call: &Call, value: &Value) -> Result<Reply, BadReply> {
    let mut answer = ReplyReader::new(value)?;
    let mut parts = Vec::with_capacity(call.parts.len());
    for part in &call.parts {
        let states = part.cells.iter().map(|update| decode_cell(&mut answer, update));
        parts.push(states.collect::<Result<SmallVec<_>, _>>()?);
    }
    let mut verdicts = Vec::with_capacity(call.asks.len());
    for ask in &call.asks {
        let is_admitted = answer.flag()?;
        let count = answer.below("no more needs than were asked", ask.needs.len() as u64 + 1)?;
        let over = (0..count).map(|_| {
            let place = answer.below("the place of a need", ask.needs.len() as u64)?;
            u16::try_from(place).map_err(|_| bad("the place of a need", place))
        });
        verdicts.push(AskVerdict { over: over.collect::<Result<_, _>>()?, is_admitted });
    }
    answer.end()?;
    Ok(Reply { parts, verdicts })
}

fn decode_cell(answer: &mut ReplyReader<'_>, update: &CellUpdate) -> Result<CellState, BadReply> {
    Ok(CellState {
        sequence: update.sequence(),
        epoch: answer.count()?,
        sum: answer.count()?,
        field: answer.count()?,
        asked: answer.count()?,
        refunds: answer.count()?,
        holders: answer.below("a number of holders", 1 << 32)? as u32,
        level: match update.shape {
            CellShape::Window(_) => BucketLevel::default(),
            CellShape::Bucket(_) => {
                BucketLevel { ahead_ms: answer.count()?, whole: answer.count()?, rest: answer.count()? }
            }
        },
    })
}

/// Reads what [`BEAT`] answered.
pub(crate) fn decode_beat(value: &Value) -> Result<BeatReply, BadReply> {
    let mut answer = ReplyReader::new(value)?;
    let beat = BeatReply {
        was_known: answer.flag()?,
        live: answer.count()?,
        time_ms: answer.count()?,
        incarnation: answer.count()?,
    };
    answer.end()?;
    Ok(beat)
}

/// Reads an answer's numbers in their order, and checks each.
struct ReplyReader<'a>(std::slice::Iter<'a, Value>);

impl<'a> ReplyReader<'a> {
    fn new(value: &'a Value) -> Result<ReplyReader<'a>, BadReply> {
        match value {
            Value::Array(values) => Ok(ReplyReader(values.iter())),
            other => Err(bad("an array", kind(other))),
        }
    }

    fn below(&mut self, expected: &'static str, bound: u64) -> Result<u64, BadReply> {
        match self.0.next() {
            Some(Value::Int(number)) => {
                u64::try_from(*number).ok().filter(|count| *count < bound).ok_or_else(|| bad(expected, number))
            }
            Some(other) => Err(bad(expected, kind(other))),
            None => Err(bad(expected, "too few numbers")),
        }
    }

    fn count(&mut self) -> Result<u64, BadReply> {
        self.below("a count", COUNT_MAX + 1)
    }

    fn flag(&mut self) -> Result<bool, BadReply> {
        Ok(self.below("0 or 1", 2)? == 1)
    }

    fn end(&mut self) -> Result<(), BadReply> {
        self.0.next().map_or(Ok(()), |_| Err(bad("the end of the answer", "more numbers")))
    }
}

fn bad(expected: &'static str, found: impl fmt::Display) -> BadReply {
    BadReply { expected, found: found.to_string() }
}

/// The kind of a value, without its content, which can be long.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::VerbatimString { .. } => "a string",
        Value::Array(_) => "an array",
        Value::Okay => "OK",
        Value::Double(_) => "a fraction",
        Value::Boolean(_) => "a boolean",
        Value::ServerError(_) => "an error",
        _ => "another kind of value",
    }
}

#[cfg(test)]
mod tests;
