//! What the processes of a region tell each other about other regions, and how they agree on who speaks with those.
//!
//! One process of a region, the speaker, does all of MySQL's work for it. The region's Redis keeps three things for that:
//! a *lease*, which names the speaker and ends by itself; *mentions*, with which the others tell the speaker of cells that
//! other regions should know of; and the *feed*, in which the speaker hands on what it has heard of other regions.
//!
//! One kind of call serves all of it, as a whole and in this order: it takes, renews or gives up the lease, if it is free or
//! the caller's; for the holder of the lease it appends entries to the feed, and hands it the mentions; from everybody else
//! it takes mentions, as far as there is room. So whoever has lost the lease without knowing appends nothing. What mentions
//! and entries say is `global/`'s business.

use crate::regional::call::ProcessId;

/// How long a lease lasts without being renewed.
pub(crate) const LEASE_MS: u64 = 3_000;
/// How many mentions wait for the speaker at most.
pub(crate) const MENTIONS_MAX: usize = 8_192;
/// How many mentions one call hands to the speaker at most.
pub(crate) const MENTIONS_TAKEN_MAX: usize = 4_096;
/// How long mentions wait while nobody mentions more.
pub(crate) const MENTIONS_KEPT_MS: u64 = 10_000;
/// How many entries the feed keeps: those of half a minute and more.
pub(crate) const FEED_KEPT: usize = 64;
/// How long the feed lasts when nobody speaks any more.
pub(crate) const FEED_KEPT_MS: u64 = 60_000;

/// What the caller wants of the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeaseWish {
    /// Leave it as it is.
    #[default]
    Nothing,
    /// Take it, if nobody has it, or renew it.
    Hold,
    /// Give it up, after everything else was done.
    GiveUp,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VoiceCall {
    /// Who calls.
    pub process: ProcessId,
    /// What it wants of the lease.
    pub lease: LeaseWish,
    /// What the speaker should know of. Left out if the caller is the speaker.
    pub mentions: Vec<Vec<u8>>,
    /// What all others should hear. Left out unless the caller is the speaker.
    pub entries: Vec<Vec<u8>>,
}

/// The answer to a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VoiceReply {
    /// Who has the lease now.
    pub speaker: Option<ProcessId>,
    /// How many of the caller's mentions found room, from the first on.
    pub mentioned: usize,
    /// What others have mentioned, the oldest first. Handed out once, and only to the speaker.
    pub mentions: Vec<Vec<u8>>,
}

/// Where an entry stands in the feed. Later entries have larger places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FeedPlace {
    /// When it was appended, by Redis' clock, unless that went back.
    pub ms: u64,
    /// Tells apart what was appended in one millisecond.
    pub number: u64,
}

/// An entry of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedItem {
    /// Where it stands.
    pub place: FeedPlace,
    /// Who appended it.
    pub speaker: ProcessId,
    /// What it says.
    pub body: Vec<u8>,
}
