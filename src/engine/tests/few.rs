//! The short way over a few keys against the long one: two tables get the same requests, give the same answers, and end up
//! with the same counts.

use proptest::prelude::*;

use crate::clock::Now;
use crate::engine::decide::{Case, Check, Group, Reach, StoreAccess, StoreView, StoreViews};
use crate::engine::key::Key;
use crate::engine::reach::Store;
use crate::engine::table::Table;
use crate::engine::table::cell::{BucketLevel, CellShape, CellState, CellUpdate};
use crate::rules::limit::{Space, Terms};
use crate::rules::policy::{Algorithm, Scope};
use crate::simulate::random::Random;

const START_MS: u64 = 1_800_000_000_000;
const MONO_MS: u64 = 5000;
const USERS: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"an-identifier-that-is-too-long-to-be-kept-in-its-slot"];

/// One check of a request: which user, under which algorithm, for how many hits.
#[derive(Clone, Debug)]
struct Asked {
    user: usize,
    algorithm: Algorithm,
    hits: u64,
    is_regional: bool,
    group: Group,
}

fn asked() -> impl Strategy<Value = Asked> {
    let algorithm = prop_oneof![
        4 => Just(Algorithm::SlidingWindow),
        1 => Just(Algorithm::FixedWindow),
        1 => Just(Algorithm::ExactWindow),
        1 => Just(Algorithm::Gcra),
    ];
    let group = prop_oneof![
        6 => Just((false, false)),
        1 => Just((true, false)),
        1 => Just((false, true)),
    ];
    let hits = prop_oneof![8 => 1u64..4, 1 => Just(0), 1 => 9u64..12];
    (0..USERS.len(), algorithm, hits, any::<bool>(), group).prop_map(
        |(user, algorithm, hits, is_regional, (is_shadow, is_quota))| Asked {
            user,
            algorithm,
            hits,
            is_regional,
            group: Group { is_shadow, is_quota },
        },
    )
}

fn check(group: usize, asked: &Asked, is_shared: bool) -> Check<'static> {
    let terms = Terms { limit: 10, window_ms: 1000, algorithm: asked.algorithm, burst: 10 };
    let is_regional = is_shared && asked.is_regional;
    Check {
        hits: asked.hits,
        group,
        reach: if is_regional { Reach::Region { slack_permille: 100 } } else { Reach::Process },
        scope: if is_regional { Scope::Regional } else { Scope::Local },
        ..Check::local(Key::new(Space::new("d", "k"), &terms, USERS[asked.user]), terms)
    }
}

/// Lets the origin know of all hits, so that memory may decide for a while.
fn tell(table: &Table, now_ms: u64) {
    let at = Now { wall_ms: now_ms, mono_us: MONO_MS * 1000 };
    for number in 0..table.shards() {
        let mut shard = table.lock(number);
        for place in shard.taken() {
            let (slot, Some(shared)) = shard.both(place) else { continue };
            let terms = slot.terms();
            slot.counter.look(&terms, now_ms);
            shared.follow(&slot.counter);
            let heard = |told: &CellUpdate| CellState {
                sequence: told.sequence(),
                epoch: 1,
                sum: told.own,
                field: told.own,
                holders: 2,
                level: match told.shape {
                    CellShape::Window(_) => BucketLevel::default(),
                    CellShape::Bucket(bucket) => BucketLevel { whole: bucket.level, ..BucketLevel::default() },
                },
                ..CellState::default()
            };
            let cells: Vec<CellState> = shared.judged_cells(&slot.counter, &terms, now_ms).iter().map(heard).collect();
            shared.absorb(&mut slot.counter, &terms, &cells, 0, at);
            shared.sync().dequeue();
        }
    }
    let grown = table.grown(Store::Origin);
    while grown.all.pop().is_some() || grown.urgent.pop().is_some() {}
}

/// What a table holds of every key, and how much it wants to tell.
fn left_behind(table: &Table) -> (Vec<String>, usize, usize) {
    let mut keys = Vec::new();
    for number in 0..table.shards() {
        let mut shard = table.lock(number);
        for place in shard.taken() {
            let (slot, shared) = shard.both(place);
            let part = shared.map(|shared| (shared.pending(), shared.is_queued(), shared.is_wanted()));
            keys.push(format!("{:?} {:?} {part:?}", slot.key(), slot.counter));
        }
    }
    keys.sort();
    let grown = table.grown(Store::Origin);
    (keys, grown.all.len(), grown.urgent.len())
}

proptest! {
    #[test]
    fn a_few_keys_are_decided_as_any_number_is(
        requests in prop::collection::vec((prop::collection::vec(asked(), 2..9), 0u64..400, any::<bool>()), 1..60),
        is_shared in any::<bool>(),
        is_shadow in prop::bool::weighted(0.1),
        seed in any::<u64>(),
    ) {
        // Only a few shards, so that some keys share one, and all shards are soon looked through.
        let new = || if is_shared { Table::shared(4000) } else { Table::new(4000) };
        let table = || new().hashed_by(Random::new(seed).hasher());
        let (short, long) = (table(), table());
        let view = |may_ask: bool| match may_ask {
            true => StoreView::new(2, StoreAccess::Allowed),
            false => StoreViews::ALONE.origin,
        };
        let mut now_ms = START_MS;
        for (asked, later_ms, may_ask) in &requests {
            now_ms += later_ms;
            // Now and then, as flushes do.
            if later_ms % 2 == 0 {
                [&short, &long].into_iter().for_each(|table| tell(table, now_ms));
            }
            let views = StoreViews { mono_ms: MONO_MS, origin: view(*may_ask), ..StoreViews::ALONE };
            let checks: Vec<Check<'_>> =
                asked.iter().enumerate().map(|(group, asked)| check(group, asked, is_shared)).collect();
            let groups: Vec<Group> = asked.iter().map(|asked| asked.group).collect();
            let case = |table| Case { table, checks: &checks, groups: &groups, is_shadow, now_ms, views: &views };
            let shortly = case(&short).decide();
            let at_length = case(&long).decide_all();
            prop_assert_eq!(shortly.is_over, at_length.is_over);
            prop_assert_eq!(shortly.verdicts, at_length.verdicts);
            prop_assert_eq!(shortly.questions, at_length.questions);
            prop_assert_eq!(left_behind(&short), left_behind(&long));
        }
    }
}
