//! Two processes of a region, of which one speaks.

use super::*;
use crate::regional::model::Origin;
use crate::regional::voice::FeedItem;

/// Two processes, what they share, and the table.
struct Pair {
    speaker: Process,
    follower: Process,
    origin: Origin,
    rows: Rows,
}

impl Pair {
    fn start() -> Pair {
        let [speaker, follower] = [1, 2].map(|name| Process::named(Some(ProcessId(name)), 100, rules(HOUR)));
        let mut pair = Pair { speaker, follower, origin: Origin::default(), rows: Rows::default() };
        pair.pass(1000);
        pair.speak(false);
        pair.mention();
        pair.speaker.import(&pair.rows);
        pair.follower.import(&pair.rows);
        assert_eq!((pair.speaker.exchange.role(), pair.follower.exchange.role()), (Role::Speaking, Role::Following));
        pair
    }

    fn pass(&mut self, ms: u64) {
        self.speaker.pass(ms);
        self.follower.now = self.speaker.now;
    }

    /// Has the speaker say what it has to say.
    fn speak(&mut self, is_turn: bool) {
        talk(&self.speaker, &mut self.origin, is_turn);
    }

    /// Has the follower mention what it has to mention.
    fn mention(&mut self) {
        talk(&self.follower, &mut self.origin, false);
    }

    /// A second in which the speaker imports, hands on and publishes.
    fn turn(&mut self) {
        self.speaker.import(&self.rows);
        self.follower.now = self.speaker.now;
        self.speak(false);
        self.speak(true);
        for read in self.speaker.exchange.cells_to_read(false, self.speaker.now) {
            let reply = self.origin.call(&read.call, self.speaker.now.wall_ms);
            self.speaker.exchange.cells_read(&read, &reply, self.speaker.now);
        }
        self.speaker.publish(&mut self.rows, StatementOutcome::Done);
        self.follower.now = self.speaker.now;
    }

    /// What the follower has not heard yet.
    fn unheard(&self) -> Vec<FeedItem> {
        self.origin.feed_after(self.follower.exchange.feed_place())
    }

    fn hear(&mut self) {
        for item in self.unheard() {
            self.follower.exchange.hear_feed(item, self.follower.now);
        }
    }
}

fn talk(process: &Process, origin: &mut Origin, is_turn: bool) {
    if let Some(call) = process.exchange.voice_call(is_turn, process.now) {
        let reply = origin.speak(&call, process.now.wall_ms);
        process.exchange.voice_replied(&call, process.now.mono_us, &reply, process.now);
    }
}

#[test]
fn what_a_follower_counts_is_published_by_the_speaker_and_comes_back() {
    let mut pair = Pair::start();
    assert!(pair.follower.ask("x", 60));
    pair.pass(300);
    pair.mention();
    assert_eq!(pair.follower.publish(&mut pair.rows, StatementOutcome::Done), 0, "it leaves that to the speaker");
    pair.turn();
    assert_eq!(pair.rows.total("a").hits, 60);
    pair.turn();
    pair.hear();
    let before = pair.follower.exchange.counts.mentions_made.load(Ordering::Relaxed);
    pair.pass(1000);
    pair.mention();
    assert_eq!(pair.follower.exchange.counts.mentions_made.load(Ordering::Relaxed), before, "all is told");
    assert!(!pair.follower.exchange.wants_reading(pair.follower.now));
}

#[test]
fn a_mention_that_gets_lost_is_made_again() {
    let mut pair = Pair::start();
    assert!(pair.follower.ask("x", 60));
    pair.pass(300);
    pair.mention();
    pair.origin.clear();
    pair.turn();
    assert_eq!(pair.rows.total("a").hits, 0);
    pair.pass(1000);
    pair.speak(true);
    pair.pass(2500);
    pair.mention();
    pair.turn();
    assert_eq!(pair.rows.total("a").hits, 60);
}

#[test]
fn what_is_missed_in_the_feed_is_read_in_the_table() {
    let mut pair = Pair::start();
    pair.turn();
    pair.hear();
    pair.rows.commit("b", &[row_of_b("x", 70, pair.speaker.now)], pair.speaker.now.wall_ms);
    pair.turn();
    // The entry that tells of it arrives as something else.
    for item in pair.unheard() {
        pair.follower.exchange.hear_feed(FeedItem { body: vec![9], ..item }, pair.follower.now);
    }
    assert!(pair.follower.exchange.counts.malformed.load(Ordering::Relaxed) > 0);
    pair.turn();
    pair.hear();
    assert_eq!(pair.follower.exchange.counts.gaps.load(Ordering::Relaxed), 1);
    assert!(pair.follower.ask("x", 31), "nobody has told it");
    pair.turn();
    pair.hear();
    assert!(pair.follower.exchange.wants_reading(pair.follower.now));
    assert_ne!(pair.follower.import(&pair.rows), ALL, "only what has changed lately");
    assert!(!pair.follower.ask("x", 1));
    pair.speaker.now = pair.follower.now;
    // In time to keep the lease.
    pair.speak(false);
    pair.turn();
    pair.turn();
    pair.hear();
    assert!(!pair.follower.exchange.wants_reading(pair.follower.now), "nothing is missing any more");
    assert_eq!(pair.follower.exchange.counts.gaps.load(Ordering::Relaxed), 1);
}

/// The speaker notices that the table was made anew, and has all others tell what only they know.
#[test]
fn a_table_that_lost_rows_is_told_again_what_only_followers_know() {
    let mut pair = Pair::start();
    assert!(pair.follower.ask("x", 60));
    pair.pass(300);
    pair.mention();
    pair.turn();
    pair.turn();
    pair.hear();
    for _ in 0..12 {
        pair.turn();
        pair.hear();
    }
    pair.rows = Rows::default();
    pair.speaker.exchange.doubt();
    for _ in 0..40 {
        pair.turn();
        pair.hear();
        if pair.follower.exchange.wants_reading(pair.follower.now) {
            pair.follower.import(&pair.rows);
            pair.speaker.now = pair.follower.now;
        }
        pair.mention();
    }
    assert_eq!(pair.rows.total("a").hits, 60);
}

/// Found by a review: what the speaker handed on meanwhile made the server's clock seem to go back, so that everything was
/// read again and again.
#[test]
fn a_follower_that_hears_the_feed_while_it_reads_everything_reads_it_once() {
    let mut pair = Pair::start();
    pair.follower.exchange.state.lock().passes.read_all_soon(pair.follower.now.mono_us);
    let mut passes = 0;
    for _ in 0..200 {
        pair.turn();
        pair.hear();
        if !pair.follower.exchange.wants_reading(pair.follower.now) {
            pair.follower.exchange.passed_import(pair.follower.now);
            continue;
        }
        let began = pair.follower.now;
        let (reading, mut hearing) = pair.follower.exchange.reading(began);
        for row in pair.rows.read(&reading, began.wall_ms) {
            pair.follower.exchange.hear(&mut hearing, row, began);
        }
        passes += u64::from(reading == ALL);
        for _ in 0..3 {
            pair.turn();
            pair.hear();
        }
        pair.follower.exchange.imported(hearing, &reading, began.wall_ms, pair.follower.now);
    }
    assert_eq!((passes, pair.follower.exchange.counts.gaps.load(Ordering::Relaxed)), (1, 0));
}

/// Found by a review: the speaker left out for all what did not fit its own clock.
#[test]
fn a_speaker_whose_clock_is_wrong_hands_on_and_publishes_all_the_same() {
    let mut pair = Pair::start();
    pair.turn();
    pair.hear();
    pair.rows.commit("b", &[row_of_b("x", 100, pair.follower.now)], pair.follower.now.wall_ms);
    assert!(pair.follower.ask("y", 60));
    let skewed = |now: Now| Now { wall_ms: now.wall_ms + 3 * 3_600_000, ..now };
    let mut rows = 0;
    for _ in 0..5 {
        pair.pass(1000);
        let now = skewed(pair.speaker.now);
        let server_ms = pair.speaker.now.wall_ms;
        let (reading, mut hearing) = pair.speaker.exchange.reading(now);
        for row in pair.rows.read(&reading, server_ms) {
            pair.speaker.exchange.hear(&mut hearing, row, now);
        }
        pair.speaker.exchange.imported(hearing, &reading, server_ms, now);
        pair.speak(false);
        pair.hear();
        pair.mention();
        pair.speak(true);
        pair.speaker.exchange.cells_to_read(false, now);
        let sending = pair.speaker.exchange.collect(now);
        rows += sending.next().map_or(0, <[OwnRow]>::len);
        pair.speaker.exchange.published_nothing(None, now);
    }
    assert!(!pair.follower.ask("x", 1), "the other region has used all of it");
    assert!(rows > 0, "what the follower has mentioned is published");
}
