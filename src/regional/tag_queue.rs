//! What a Cluster is to be told, by hash tag: a message has keys of one slot only, and most keys have few neighbours there.
//!
//! On a single server everything that is due goes with the next flush, many keys in a message. If a Cluster were told as
//! soon, a key that is in use would cost it a message of its own every 50 ms. So a flush sends a few tags only, those that have
//! waited longest. While few tags have something to tell, it goes as soon as on a single server. When all have, each goes about
//! every 1.3 seconds, with all that has come together. A tag with enough for a message goes with any flush: that costs no more
//! than elsewhere.
//!
//! Nothing is lost by waiting, and no limit is kept less well than is promised: hits that wait are pending, and what may be
//! pending on a key is bounded. Whatever has used up half of that does not wait here.

use std::collections::VecDeque;

/// How many tags there are: a tag is a byte.
const TAGS: usize = 256;
/// With so many keys a tag has enough for a message: half of what fits, or all of it if each has two cells.
const KEYS_OF_A_MESSAGE: usize = 32;
/// How many tags that have less go with a flush, at 20 flushes a second: 200 messages a second, and 1.3 seconds for all tags.
const TAGS_PER_FLUSH: usize = 10;

/// What waits under one tag.
#[derive(Clone, Debug)]
struct Tagged<T> {
    /// In the order in which it came.
    waiting: VecDeque<T>,
    /// Since when something has been waiting without a break.
    since_us: u64,
}

/// What waits to be told, by tag, and which tags are to go.
#[derive(Clone, Debug)]
pub(crate) struct TagQueue<T> {
    /// By tag.
    tags: Vec<Tagged<T>>,
    /// Tags that are to go now, and have not gone yet.
    going: VecDeque<u8>,
    waiting: usize,
}

impl<T> TagQueue<T> {
    pub(crate) fn new() -> TagQueue<T> {
        let tags = (0..TAGS).map(|_| Tagged { waiting: VecDeque::new(), since_us: 0 }).collect();
        TagQueue { tags, going: VecDeque::new(), waiting: 0 }
    }

    /// Has something wait behind whatever waits under its tag.
    pub(crate) fn enter(&mut self, tag: u8, item: T, now_us: u64) {
        let tagged = &mut self.tags[usize::from(tag)];
        if tagged.waiting.is_empty() {
            tagged.since_us = now_us;
        }
        tagged.waiting.push_back(item);
        self.waiting += 1;
    }

    /// Has something wait before whatever waits under its tag.
    pub(crate) fn enter_first(&mut self, tag: u8, item: T, now_us: u64) {
        self.enter(tag, item, now_us);
        self.tags[usize::from(tag)].waiting.rotate_right(1);
    }

    /// Takes what is first under a tag.
    pub(crate) fn take(&mut self, tag: u8) -> Option<T> {
        let item = self.tags[usize::from(tag)].waiting.pop_front()?;
        self.waiting -= 1;
        Some(item)
    }

    /// Chooses the tags that go with a flush.
    pub(crate) fn begin_flush(&mut self) {
        let mut few = TAGS_PER_FLUSH;
        let going = self.by_age().into_iter().filter(|tag| {
            let is_enough = self.tags[usize::from(*tag)].waiting.len() >= KEYS_OF_A_MESSAGE;
            let goes = is_enough || few > 0;
            few -= usize::from(goes && !is_enough);
            goes
        });
        self.going = going.collect();
    }

    /// Everything is to go, whatever it costs.
    pub(crate) fn release(&mut self) {
        self.going = self.by_age().into();
    }

    /// Tags with something that waits, the one that has waited longest first.
    fn by_age(&self) -> Vec<u8> {
        let mut tags: Vec<u8> = (0..=u8::MAX).filter(|tag| !self.is_done(*tag)).collect();
        tags.sort_by_key(|tag| self.tags[usize::from(*tag)].since_us);
        tags
    }

    /// A tag that is to go now.
    pub(crate) fn next_going(&mut self) -> Option<u8> {
        self.going.pop_front()
    }

    /// The message about a tag was full: the rest follows, after the others.
    pub(crate) fn goes_on(&mut self, tag: u8) {
        if !self.is_done(tag) {
            self.going.push_back(tag);
        }
    }

    /// A tag with enough for a message, or, if it is to be `any`, with anything at all.
    pub(crate) fn worth_a_message(&self, any: bool) -> Option<u8> {
        let least = if any { 1 } else { KEYS_OF_A_MESSAGE };
        (0..=u8::MAX).find(|tag| self.tags[usize::from(*tag)].waiting.len() >= least)
    }

    /// Nothing waits under the tag.
    fn is_done(&self, tag: u8) -> bool {
        self.tags[usize::from(tag)].waiting.is_empty()
    }

    /// Some tags are still to go now.
    pub(crate) fn is_going(&self) -> bool {
        !self.going.is_empty()
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Since when the tag has been waiting that has waited longest.
    pub(crate) fn since_us(&self) -> Option<u64> {
        self.tags.iter().filter(|tagged| !tagged.waiting.is_empty()).map(|tagged| tagged.since_us).min()
    }

    /// All that waits.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.tags.iter().flat_map(|tagged| &tagged.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regional::replay::FLUSH_INTERVAL_US;

    /// Has so many keys of each tag come with each flush, and says how many messages a second of flushes sends, how many keys
    /// with them, and for how many flushes a key has waited at most.
    fn second(queue: &mut TagQueue<u64>, keys: usize, from: u64) -> (usize, usize, u64) {
        let (mut messages, mut told, mut waited) = (0, 0, 0);
        for flush in from..from + 20 {
            for tag in 0..=u8::MAX {
                (0..keys).for_each(|_| queue.enter(tag, flush, flush * FLUSH_INTERVAL_US));
            }
            queue.begin_flush();
            while let Some(tag) = queue.next_going() {
                messages += 1;
                while let Some(since) = queue.take(tag) {
                    told += 1;
                    waited = waited.max(flush - since);
                }
            }
        }
        (messages, told, waited)
    }

    #[test]
    fn a_flush_sends_few_small_messages_and_nobody_waits_for_long() {
        let mut queue = TagQueue::new();
        second(&mut queue, 1, 0);
        second(&mut queue, 1, 20);
        let (messages, told, waited) = second(&mut queue, 1, 40);
        assert_eq!(messages, 20 * TAGS_PER_FLUSH);
        assert!(told >= 25 * messages, "each takes along what has come together: {told}");
        assert!(waited * FLUSH_INTERVAL_US <= 1_300_000, "{waited} flushes");
    }

    #[test]
    fn a_tag_with_enough_for_a_message_does_not_wait() {
        let mut queue = TagQueue::new();
        let (messages, told, waited) = second(&mut queue, KEYS_OF_A_MESSAGE, 0);
        assert_eq!((messages, told, waited), (20 * TAGS, 20 * TAGS * KEYS_OF_A_MESSAGE, 0));
        assert!(queue.is_empty() && queue.since_us().is_none());
    }

    #[test]
    fn few_tags_do_not_wait_at_all() {
        let mut queue = TagQueue::new();
        for flush in 0..10 {
            (0..TAGS_PER_FLUSH as u8).for_each(|tag| queue.enter(7 * tag, flush, flush));
            queue.begin_flush();
            while let Some(tag) = queue.next_going() {
                assert_eq!((queue.take(tag), queue.take(tag)), (Some(flush), None));
            }
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn a_stop_sends_everything_a_message_of_each_tag_in_turn() {
        let mut queue = TagQueue::new();
        for number in 0..3 {
            (0..=u8::MAX).rev().for_each(|tag| queue.enter(tag, number, 1000 - u64::from(tag)));
        }
        queue.release();
        let (mut told, mut tags) = (Vec::new(), Vec::new());
        while let Some(tag) = queue.next_going() {
            told.extend(queue.take(tag));
            tags.push(tag);
            queue.goes_on(tag);
        }
        assert!(tags[..TAGS].is_sorted_by(|one, other| one > other), "what has waited longest first");
        assert!(told.is_sorted() && told.len() == 3 * TAGS);
    }
}
