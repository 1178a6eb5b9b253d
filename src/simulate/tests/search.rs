//! Random schedules, and changes to the worst of them: none ever gains more than the credits of all processes.
//!
//! Every run has the schedules of a fixed seed, and others that no run had before.

use super::exact_count::KeyOutcome;
use super::schedule::{Arrival, Fleet, Played};
use crate::engine::tests::seed::seed;
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;
use crate::simulate::faults::Fault;
use crate::simulate::random::Random;

const WINDOW_MS: u64 = 4_000;
const WINDOW_US: u64 = WINDOW_MS * 1000;
/// A schedule takes about as long as this many windows.
const WINDOWS: u64 = 3;
/// Of each algorithm and fleet: those of the fixed seed, and those of the seed of this run.
const FIXED_SCHEDULES: u64 = 130;
const FRESH_SCHEDULES: u64 = 30;
const PHASES_MAX: u64 = 6;

/// Processes, what their limit admits at once, the slack, and the round trip: some have several hits of credit each, some
/// one, some none.
const FLEETS: [(usize, u32, u16, u64); 7] = [
    (2, 50, 250, 1),
    (3, 100, 100, 1),
    (3, 100, 100, 5),
    (4, 137, 100, 5),
    (6, 60, 100, 1),
    (9, 100, 100, 1),
    (5, 20, 100, 1),
];

/// Something that happens for a while.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Requests for one process.
    One,
    /// Requests for all processes.
    All,
    /// What some processes may each admit on their own.
    Credits,
    /// One large request.
    Large,
    /// Requests for one process after the other.
    Turns,
    /// Requests for one process, which then gives hits back.
    Refund,
    /// Another process comes.
    Join,
    /// A process stops, and a new one takes its place.
    Restart,
}

const KINDS: [Kind; 8] =
    [Kind::One, Kind::All, Kind::Credits, Kind::Large, Kind::Turns, Kind::Refund, Kind::Join, Kind::Restart];

/// A part of a schedule.
#[derive(Clone, Copy, Debug)]
struct Phase {
    kind: Kind,
    at_us: u64,
    for_us: u64,
    /// The first process that it is about, and how many.
    process: usize,
    among: usize,
    hits: u64,
}

/// A fleet, and all that happens to it.
#[derive(Clone, Debug)]
struct Schedule {
    fleet: Fleet,
    phases: Vec<Phase>,
}

/// Between 1 and so many, the smaller the likelier.
fn any_size(random: &mut Random, most: u64) -> u64 {
    let bits = 1 + random.below(64 - u64::from(most.leading_zeros()));
    (1 + random.below(1 << bits)).min(most)
}

fn any_phase(random: &mut Random, fleet: &Fleet) -> Phase {
    let capacity = u64::from(fleet.terms.capacity());
    let at_us = match random.permille(300) {
        // Around the beginning of a window.
        true => WINDOW_US * (1 + random.below(WINDOWS - 1)) - 150_000 + random.below(300_000),
        false => 10_000 + random.below(WINDOWS * WINDOW_US),
    };
    let process = random.below(fleet.processes as u64) as usize;
    Phase {
        kind: KINDS[random.below(KINDS.len() as u64) as usize],
        at_us,
        for_us: any_size(random, 8_000_000),
        process,
        among: 1 + random.below(fleet.processes as u64) as usize,
        hits: if random.permille(500) { any_size(random, capacity) } else { 1 + random.below(2 * capacity) },
    }
}

/// What counts at once is the limit, of a bucket the burst.
fn fleet(number: usize, algorithm: Algorithm) -> Fleet {
    let (processes, capacity, slack_permille, round_trip_ms) = FLEETS[number];
    let terms = Terms { limit: capacity, window_ms: WINDOW_MS, algorithm, burst: capacity };
    Fleet { processes, terms, slack_permille, round_trip_ms }
}

fn any_schedule(random: &mut Random, fleet: Fleet) -> Schedule {
    let mut phases: Vec<Phase> = (0..1 + random.below(5)).map(|_| any_phase(random, &fleet)).collect();
    if random.permille(600) {
        // All of them close together.
        let (at_us, apart_us) = (phases[0].at_us, random.below(3) * 300_000);
        phases.iter_mut().for_each(|phase| phase.at_us = at_us + random.below(apart_us));
    }
    Schedule { fleet, phases }
}

/// A schedule that is like another one.
fn changed(random: &mut Random, schedule: &Schedule) -> Schedule {
    let Schedule { fleet, mut phases } = schedule.clone();
    let at = random.below(phases.len() as u64) as usize;
    match random.below(3) {
        0 if (phases.len() as u64) < PHASES_MAX => phases.push(any_phase(random, &fleet)),
        0 | 1 => phases[at] = any_phase(random, &fleet),
        _ => {
            let phase = &mut phases[at];
            let by_us = any_size(random, 4_000_000);
            phase.at_us = if random.permille(500) { phase.at_us + by_us } else { phase.at_us.saturating_sub(by_us) };
            phase.for_us = (phase.for_us * (500 + random.below(1000)) / 1000).max(1);
            phase.hits = (phase.hits * (500 + random.below(1000)) / 1000).max(1);
        }
    }
    Schedule { fleet, phases }
}

impl Schedule {
    /// How many processes come that take nobody's place.
    fn joins(&self) -> usize {
        self.phases.iter().filter(|phase| matches!(phase.kind, Kind::Join)).count()
    }

    /// Whether processes come and go, so that there may be fewer of them than at the start.
    fn changes_fleet(&self) -> bool {
        self.phases.iter().any(|phase| matches!(phase.kind, Kind::Join | Kind::Restart))
    }

    fn capacity(&self) -> u64 {
        self.fleet.terms.capacity().into()
    }

    /// The most that may count. Who comes asks about keys that may be spent, so it brings no credit of its own.
    fn bound(&self) -> u64 {
        match self.changes_fleet() {
            false => self.fleet.bound(),
            true => self.fleet.bound_up_to(self.fleet.processes + self.joins()),
        }
    }

    fn play(&self, seed: u64) -> Played {
        let mut random = Random::new(seed);
        let mut arrivals = Vec::new();
        let mut changes = Vec::new();
        let mut processes = self.fleet.processes;
        let mut phases = self.phases.clone();
        phases.sort_by_key(|phase| phase.at_us);
        for Phase { kind, at_us, for_us, process, among, hits } in phases {
            let at_us = at_us.max(10_000);
            let each = (2 * hits / processes as u64).max(1);
            let mut within = |process: usize, hits: u64| {
                for _ in 0..hits {
                    arrivals.push(Arrival { at_us: at_us + random.below(for_us), process, hits: 1 });
                }
            };
            match kind {
                Kind::One => within(process, 2 * hits),
                Kind::All => (0..processes).for_each(|process| within(process, each)),
                Kind::Credits => {
                    let credit = self.fleet.own_credit().max(1);
                    (process..process + among).for_each(|process| within(process % processes, credit));
                }
                Kind::Large => arrivals.push(Arrival { at_us, process, hits: hits.min(self.capacity()) as i64 }),
                Kind::Turns => {
                    for turn in 0..among {
                        let (at_us, process) =
                            (at_us + turn as u64 * for_us / among as u64, (process + turn) % processes);
                        arrivals.extend((0..each).map(|_| Arrival { at_us, process, hits: 1 }));
                    }
                }
                Kind::Refund => {
                    within(process, hits);
                    let at_us = at_us + for_us + random.below(200_000);
                    arrivals.push(Arrival { at_us, process, hits: -(hits as i64) });
                }
                Kind::Join => {
                    changes.push((at_us - 1, Fault::Join));
                    processes += 1;
                }
                Kind::Restart => changes.push((at_us, Fault::Restart { process })),
            }
        }
        self.fleet.play(seed, &mut arrivals, &changes)
    }
}

/// The worst schedule of some.
#[derive(Clone, Debug)]
struct Worst {
    schedule: Schedule,
    /// What counted at most, in parts of the limit.
    counted: f64,
    /// What of it was above the limit, in parts of what may be.
    gained: f64,
}

/// Plays schedules of a seed, half of them like the worst so far.
fn search(fleet: Fleet, seed: u64, schedules: u64) -> Option<Worst> {
    let mut random = Random::new(seed);
    let mut worst: Option<Worst> = None;
    for number in 0..schedules {
        let like = worst.as_ref().filter(|_| random.permille(500)).map(|worst| worst.schedule.clone());
        let schedule = match like {
            Some(schedule) => changed(&mut random, &schedule),
            None => any_schedule(&mut random, fleet),
        };
        let seed_of_play = random.number();
        let played = schedule.play(seed_of_play);
        let KeyOutcome { worst: most, wrongly_denied, .. } = played.outcome;
        let what = || format!("schedule {number} of seed {seed}, {schedule:?}, played with {seed_of_play}: {played:?}");
        // What a bucket's level is rounded up by.
        let rounding = u64::from(fleet.terms.algorithm == Algorithm::Gcra);
        let bound = schedule.bound() + rounding + played.forgotten;
        assert!(most <= bound, "{most} count, {bound} may: {}", what());
        assert_eq!(wrongly_denied, 0, "{}", what());
        let capacity = schedule.capacity() as f64;
        let (counted, gained) = (most as f64 / capacity, (most as f64 - capacity) / (bound as f64 - capacity).max(1.0));
        if worst.as_ref().is_none_or(|worst| gained >= worst.gained) {
            worst = Some(Worst { schedule, counted, gained });
        }
    }
    worst
}

fn search_all(algorithm: Algorithm) {
    let fresh = seed();
    let mut all = Vec::new();
    for number in 0..FLEETS.len() {
        let (fleet, salt) = (fleet(number, algorithm), (number as u64) << 8 | algorithm as u64);
        all.extend(search(fleet, 4242 ^ salt, FIXED_SCHEDULES));
        all.extend(search(fleet, fresh ^ salt, FRESH_SCHEDULES));
    }
    all.sort_by(|one, other| one.gained.total_cmp(&other.gained));
    let Some(Worst { schedule, counted, gained }) = all.last() else { unreachable!("there are schedules") };
    eprintln!("{algorithm:?}: {counted:.3} of the limit, {gained:.3} of all credits: {schedule:?}");
}

#[test]
fn no_schedule_gains_more_than_the_credits_of_a_sliding_window() {
    search_all(Algorithm::SlidingWindow);
}

#[test]
fn no_schedule_gains_more_than_the_credits_of_a_fixed_window() {
    search_all(Algorithm::FixedWindow);
}

#[test]
fn no_schedule_gains_more_than_the_credits_of_an_exact_window() {
    search_all(Algorithm::ExactWindow);
}

#[test]
fn no_schedule_gains_more_than_the_credits_of_a_bucket() {
    search_all(Algorithm::Gcra);
}
