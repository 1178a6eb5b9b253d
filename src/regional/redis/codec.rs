//! How calls are written for the origin's scripts, and how their answers are read.
//!
//! A call becomes the keys of its cells and two arguments: the process, and all numbers packed into one string, seven bytes
//! each as a rule, because that is what a script reads fastest. A number that is 0 in most calls is left out of those. The
//! answer is a string that is packed in the same way. `scripts/origin.lua` documents both.
//!
//! The names of all keys carry a [`VERSION`]: a process of another version keeps counts of its own under other names while
//! a fleet is updated, and no script ever meets a cell that it can't read.
//!
//! Numbers are bounded here, where they leave: a script counts exactly only up to [`COUNT_MAX`]. Every answer is
//! checked: an origin that answers anything else is an error, never a panic.

use std::fmt::{self, Write};

use redis::Value;
use smallvec::SmallVec;

use crate::engine::count::exact::PARTS as BLOCK;
use crate::engine::reach::Store;
use crate::engine::table::cell::{BucketLevel, BucketUpdate, CellShape, CellState, CellUpdate, HeldAt, WindowUpdate};
use crate::engine::table::foreign::Counts;
use crate::regional::call::{AskVerdict, COUNT_MAX, Call, CallKey, Measure, OriginKey, ProcessId, Reply};
use crate::regional::redis::cluster_slot::tag_letters;

/// Serves a [`Call`].
pub static ORIGIN: &str = include_str!("scripts/origin.lua");

/// Serves heartbeats.
pub(crate) static BEAT: &str = include_str!("scripts/beat.lua");

/// Takes a process's fields out.
pub(crate) static LEAVE: &str = include_str!("scripts/leave.lua");

/// Stands in the names of all keys. It changes with what the scripts keep under them.
pub(crate) const VERSION: u32 = 3;

/// Where a store keeps the live processes. The owner of strict limits may be a region's origin too.
pub(crate) fn processes_key(store: Store) -> String {
    match store {
        Store::Origin => format!("tidegate:{VERSION}:processes"),
        Store::Owner => format!("tidegate:{VERSION}:strict:processes"),
    }
}

/// The key under which a store keeps its incarnation. In a Cluster it is in the slot that the processes are in.
pub(crate) fn incarnation_key(store: Store) -> String {
    format!("tidegate:{VERSION}:incarnation:{{{}}}", processes_key(store))
}

/// The keys and arguments that a script is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// What it reads and writes.
    pub keys: Vec<Vec<u8>>,
    /// What it is told besides.
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
pub struct BadReply {
    /// What would be right.
    pub expected: &'static str,
    /// What was there instead.
    pub found: String,
}

/// The key of a window's cell.
pub(crate) fn cell_key(key: &OriginKey, sequence: u64) -> Vec<u8> {
    name(key, format_args!("{sequence}"))
}

/// The key of the block of an exact window that a sub-cell is in.
pub(crate) fn block_key(key: &OriginKey, sequence: u64) -> Vec<u8> {
    name(key, format_args!("x{}", sequence / BLOCK))
}

/// The key of a bucket.
pub(crate) fn bucket_key(key: &OriginKey) -> Vec<u8> {
    name(key, format_args!("g"))
}

/// The key of a bucket's previous generation of fields.
pub(crate) fn bucket_before_key(key: &OriginKey) -> Vec<u8> {
    name(key, format_args!("b"))
}

/// What a key keeps in a place of its own. The braces are a Cluster's hash tag: all of a key is in one slot.
fn name(key: &OriginKey, place: fmt::Arguments<'_>) -> Vec<u8> {
    let [first, second] = tag_letters(key.tag()).map(char::from);
    format!("tidegate:{VERSION}:{{{first}{second}}}:{}:{place}", Base64Key(key)).into_bytes()
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
pub fn encode(call: &Call) -> Invocation {
    let mut keys = Vec::with_capacity(2 * call.parts.len());
    let mut packed = Packed(Vec::with_capacity(64 * (1 + call.parts.len())));
    packed.push(2, call.nonce.into());
    packed.push(1, call.charges.into());
    packed.push(2, call.parts.len() as u64);
    packed.push(2, call.asks.len() as u64);
    for part in &call.parts {
        encode_part(part, &mut keys, &mut packed);
    }
    for ask in &call.asks {
        packed.push(2, ask.needs.len() as u64);
        for need in &ask.needs {
            packed.push(2, need.part as u64 + 1);
            packed.counts([bounded(need.limit), bounded(need.hits)]);
            packed.push(3, need.quota.map_or(0, |quota| u64::from(quota) + 1));
            packed.push(2, need.ahead.into());
        }
    }
    Invocation { keys, args: vec![process_name(call.process), packed.0] }
}

/// A process as a script and a cell name it.
fn process_name(process: ProcessId) -> Vec<u8> {
    process.0.to_be_bytes().to_vec()
}

fn encode_part(part: &CallKey, keys: &mut Vec<Vec<u8>>, packed: &mut Packed) {
    let newest = part.cells.first().map_or(0, CellUpdate::sequence);
    let (measure, measured, burst) = match part.measure {
        Measure::Sum => (0, 0, 0),
        Measure::Sliding { left_ms } => (1, left_ms, 0),
        Measure::Gcra { limit, burst } => (2, limit.into(), burst.into()),
        Measure::Exact => (3, newest % BLOCK, 0),
    };
    packed.push(1, measure);
    packed.push(5, part.window_ms);
    packed.push(5, measured);
    packed.push(1, part.cells.len() as u64);
    match part.measure {
        Measure::Gcra { .. } => keys.extend([bucket_key(&part.key), bucket_before_key(&part.key)]),
        Measure::Exact => {
            keys.extend([block_key(&part.key, newest), block_key(&part.key, newest.saturating_sub(BLOCK))]);
        }
        Measure::Sum | Measure::Sliding { .. } => {
            keys.extend(part.cells.iter().map(|update| cell_key(&part.key, update.sequence())));
        }
    }
    for (place, update) in part.cells.iter().enumerate() {
        let cell = bounded_update(update, part.window_ms);
        let (rare, kept) = match cell.shape {
            CellShape::Window(WindowUpdate { refunds_floor, ttl_ms, row, foreign, .. }) => {
                ([cell.asked, cell.asked_acked, refunds_floor, row.hits, row.refunds, foreign], ttl_ms)
            }
            CellShape::Bucket(BucketUpdate { floor_rest, level }) => {
                ([cell.asked, cell.asked_acked, floor_rest, burst, 0, 0], level)
            }
        };
        let told = [cell.own, cell.epoch, cell.floor, cell.acked];
        let is_rare = rare.iter().any(|number| *number > 0);
        let is_told = is_rare || place == 0 || told.iter().any(|number| *number > 0);
        packed.push(1, u64::from(cell.is_seated) | u64::from(is_told) << 1 | u64::from(is_rare) << 2);
        if part.measure == Measure::Exact {
            packed.push(1, newest.saturating_sub(update.sequence()));
        }
        if is_told {
            packed.counts(told);
            packed.counts([kept]);
        }
        if is_rare {
            packed.counts(rare);
        }
    }
}

/// Writes for [`LEAVE`] where a process's records are.
pub(crate) fn encode_take_out(process: ProcessId, held: &[(OriginKey, HeldAt)]) -> Invocation {
    let name = |(key, at): &(OriginKey, HeldAt)| match at {
        HeldAt::Cell(sequence) => (cell_key(key, *sequence), b'c'),
        HeldAt::Block(number) => (block_key(key, number * BLOCK), b'x'),
        HeldAt::Bucket => (bucket_key(key), b'g'),
    };
    let (keys, kinds) = held.iter().map(name).unzip();
    Invocation { keys, args: vec![process_name(process), kinds] }
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
    let keys = vec![processes_key(store).into_bytes(), incarnation_key(store).into_bytes()];
    Invocation { keys, args: vec![process.to_string().into_bytes(), what.into()] }
}

/// Whole numbers, one after the other, with the lowest byte first.
struct Packed(Vec<u8>);

impl Packed {
    /// What does not fit into so many bytes is bounded where it is made.
    fn push(&mut self, bytes: usize, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes()[..bytes]);
    }

    fn counts<const N: usize>(&mut self, counts: [u64; N]) {
        counts.into_iter().for_each(|count| self.push(7, count));
    }
}

/// Reads what [`ORIGIN`] answered to a call.
pub fn decode(call: &Call, value: &Value) -> Result<Reply, BadReply> {
    let Value::BulkString(bytes) = value else { return Err(bad("a string", kind(value))) };
    let mut answer = PackedReply(bytes);
    let mut parts = Vec::with_capacity(call.parts.len());
    for part in &call.parts {
        parts.push(match part.measure {
            Measure::Exact => decode_blocks(&mut answer, part)?,
            Measure::Gcra { .. } => SmallVec::from_iter([decode_bucket(&mut answer)?]),
            Measure::Sum | Measure::Sliding { .. } => {
                part.cells.iter().map(|update| decode_cell(&mut answer, update)).collect::<Result<SmallVec<_>, _>>()?
            }
        });
    }
    let mut verdicts = Vec::with_capacity(call.asks.len());
    for ask in &call.asks {
        let is_admitted = answer.below(1, "0 or 1", 2)? == 1;
        let count = answer.below(2, "no more needs than were asked", ask.needs.len() as u64 + 1)?;
        let over = (0..count).map(|_| Ok(answer.below(2, "the place of a need", ask.needs.len() as u64)? as u16));
        verdicts.push(AskVerdict { over: over.collect::<Result<_, _>>()?, is_admitted });
    }
    match answer.0.len() {
        0 => Ok(Reply { parts, verdicts }),
        more => Err(bad("the end of the answer", format_args!("{more} bytes more"))),
    }
}

fn decode_cell(answer: &mut PackedReply<'_>, update: &CellUpdate) -> Result<CellState, BadReply> {
    let cell = CellState { sequence: update.sequence(), ..CellState::default() };
    Ok(match answer.below(1, "a kind of cell", 3)? {
        0 => cell,
        1 => CellState {
            epoch: bounded(update.epoch),
            sum: answer.count()?,
            field: bounded(update.own),
            holders: answer.holders()?,
            ..cell
        },
        _ => CellState {
            epoch: answer.count()?,
            sum: answer.count()?,
            field: answer.count()?,
            asked: answer.count()?,
            refunds: answer.count()?,
            holders: answer.holders()?,
            ..cell
        },
    })
}

fn decode_bucket(answer: &mut PackedReply<'_>) -> Result<CellState, BadReply> {
    Ok(CellState {
        epoch: answer.count()?,
        sum: answer.count()?,
        field: answer.count()?,
        asked: answer.count()?,
        holders: answer.holders()?,
        level: BucketLevel { ahead_ms: answer.count()?, whole: answer.count()?, rest: answer.count()? },
        ..CellState::default()
    })
}

/// All sub-cells of an exact window, whatever was told of them.
fn decode_blocks(answer: &mut PackedReply<'_>, part: &CallKey) -> Result<SmallVec<[CellState; 2]>, BadReply> {
    let newest = part.cells.first().map_or(0, CellUpdate::sequence);
    let blocks = [decode_block(answer)?, decode_block(answer)?];
    let of_block = |back: u64| {
        let sequence = newest.saturating_sub(back);
        let block = &blocks[usize::from(back > newest % BLOCK)];
        CellState { sequence, ..block[(sequence % BLOCK) as usize] }
    };
    Ok((0..=BLOCK).map(of_block).collect())
}

/// The sub-cells of a block, as the script keeps them.
fn decode_block(answer: &mut PackedReply<'_>) -> Result<[CellState; BLOCK as usize], BadReply> {
    const PLACES: usize = BLOCK as usize;
    let (head, record, holders) = (answer.text()?, answer.text()?, answer.holders()?);
    let mut cells = [CellState { holders, ..CellState::default() }; PLACES];
    let Some((kind, head)) = head.split_first() else { return Ok(cells) };
    let (per_cell, told) = match kind {
        1 => (1, 1),
        2 => (6, 2),
        other => return Err(bad("a kind of block", other)),
    };
    let is_whole = record.is_empty() || record.len() == 8 + 7 * PLACES * told;
    if head.len() != 7 * (1 + PLACES * per_cell) || !is_whole {
        return Err(bad("a block", "one of another length"));
    }
    let (head, record) = (counts(head)?, counts(record.get(8..).unwrap_or_default())?);
    for (place, cell) in cells.iter_mut().enumerate() {
        cell.epoch = head[0];
        match head[1 + place * per_cell..][..per_cell] {
            [floor, added, told, refunds, known, given_back] => {
                cell.sum = bounded((floor + added).max(told).max(known));
                cell.refunds = refunds.max(given_back);
            }
            ref short => cell.sum = short[0],
        }
        if let Some(of_process) = record.get(place * told..).filter(|rest| !rest.is_empty()) {
            cell.field = of_process[0];
            cell.asked = if told == 2 { of_process[1] } else { 0 };
        }
    }
    Ok(cells)
}

/// Numbers of seven bytes each, the lowest first.
fn counts(packed: &[u8]) -> Result<Vec<u64>, BadReply> {
    let all: Vec<u64> = packed.chunks(7).map(whole).collect();
    match all.iter().find(|count| **count > COUNT_MAX) {
        Some(count) => Err(bad("a count", count)),
        None => Ok(all),
    }
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

/// Reads what is packed in their order, and checks each number.
struct PackedReply<'a>(&'a [u8]);

impl<'a> PackedReply<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], BadReply> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(|| bad("more bytes", self.0.len()))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A number of so many bytes.
    fn below(&mut self, length: usize, expected: &'static str, bound: u64) -> Result<u64, BadReply> {
        let number = whole(self.bytes(length)?);
        if number < bound { Ok(number) } else { Err(bad(expected, number)) }
    }

    fn count(&mut self) -> Result<u64, BadReply> {
        self.below(7, "a count", COUNT_MAX + 1)
    }

    fn holders(&mut self) -> Result<u32, BadReply> {
        Ok(self.below(3, "a number of holders", 1 << 24)? as u32)
    }

    /// A string after its length.
    fn text(&mut self) -> Result<&'a [u8], BadReply> {
        let length = self.below(2, "a length", 1 << 16)?;
        self.bytes(length as usize)
    }
}

/// A number with its lowest byte first.
fn whole(packed: &[u8]) -> u64 {
    packed.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Reads a heartbeat's numbers in their order, and checks each.
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
