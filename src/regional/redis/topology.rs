//! Keeps up with who has which slot of a Cluster.
//!
//! A few nodes are asked over the connections that are there, side by side, and the answer that most of them give counts: one
//! that was frozen, or is cut off, tells what was true before. If none answers, the nodes that `REDIS_URL` names are dialled,
//! side by side too, so that one which hangs delays nobody.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::regional::map_watch::MapWatch;
use crate::regional::node_map::SLOTS;
use crate::regional::redis::connected_nodes::{ConnectedNode, ConnectedNodes};
use crate::regional::redis::dial::dial;
use crate::regional::redis::error::OriginError;
use crate::regional::redis::lanes::Lane;
use crate::regional::redis::settings::RedisSettings;
use crate::regional::redis::settings::address::{RedisNode, RedisTarget};
use crate::regional::redis::slots::{SlotRange, read_slots};
use crate::regional::redis::voice::{LISTEN_WAIT, voice_key};

/// How many nodes are asked at a time.
const ASKED: usize = 3;
/// How many of them have to agree, if so many answer.
const AGREED: usize = 2;
/// How long they have.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// The pause after nobody has answered, and the longest: it doubles.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Reads the map whenever it may have changed, for good. Only for a Cluster.
pub(super) async fn keep_placed(nodes: Arc<ConnectedNodes>) {
    let RedisTarget::Cluster(seeds) = nodes.settings().place.clone() else { return };
    let began = Instant::now();
    let now_us = || u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut watch = MapWatch::default();
    let mut pause = PAUSE;
    loop {
        loop {
            let due = began + Duration::from_micros(watch.next_us());
            tokio::select! {
                () = sleep_until(due.into()) => break,
                () = nodes.trouble.notified() => watch.trouble(now_us()),
            }
        }
        let found = match known(&nodes).await {
            Some(ranges) => Ok(ranges),
            None => named(nodes.settings(), &seeds).await,
        };
        match found {
            Ok(ranges) => {
                nodes.place(&ranges).await;
                pause = PAUSE;
            }
            // Where a node may not be asked, calls that go to the wrong one show step by step who has what.
            Err((error, _)) if error.reason() == "auth" && !nodes.all().is_empty() => nodes.note(&error),
            Err((error, Some(node))) if is_forbidden(&error) => {
                nodes.note(&error);
                nodes.place(&[SlotRange { first: 0, last: SLOTS - 1, primary: node }]).await;
            }
            Err((error, _)) => {
                nodes.note(&error);
                tokio::time::sleep(pause.mul_f64(1.0 - rand::random::<f64>() / 2.0)).await;
                pause = (pause * 2).min(PAUSE_MAX);
                watch.trouble(now_us());
            }
        }
        watch.read(rand::random(), now_us());
    }
}

/// The user may not ask, but may do the rest.
fn is_forbidden(error: &OriginError) -> bool {
    matches!(error, OriginError::Refused { code, .. } if code == "NOPERM")
}

/// Asks nodes that we are connected to. `None`: nobody has answered.
async fn known(nodes: &ConnectedNodes) -> Option<Vec<SlotRange>> {
    let mut asking = JoinSet::new();
    let lane = nodes.asked_over();
    // At the node that has the feed, a question waits until the read before it has ended.
    let busy = if lane == Lane::Feed { nodes.of_key(Some(&voice_key("feed"))).ok() } else { None };
    let is_busy = |node: &ConnectedNode| busy.as_ref().is_some_and(|busy| busy.id == node.id);
    let mut all = nodes.all();
    all.sort_by_cached_key(|node| (is_busy(node), rand::random::<u64>()));
    for node in all {
        let (Ok(live), Some(address)) = (node.live(lane), node.address.clone()) else { continue };
        let within = ANSWER_WITHIN + if is_busy(&node) { LISTEN_WAIT } else { Duration::ZERO };
        asking.spawn(async move { timeout(within, read_slots(&live.link, &address)).await });
        if asking.len() >= ASKED {
            break;
        }
    }
    let mut answers: Vec<(Vec<SlotRange>, usize)> = Vec::new();
    while let Some(answered) = asking.join_next().await {
        let Ok(Ok(Ok(ranges))) = answered else { continue };
        match answers.iter_mut().find(|(other, _)| *other == ranges) {
            Some((_, votes)) => *votes += 1,
            None => answers.push((ranges, 1)),
        }
        if answers.iter().any(|(_, votes)| *votes >= AGREED) {
            break;
        }
    }
    // Where they do not agree, what is known stands, unless nobody says it any more.
    let most = answers.iter().map(|(_, votes)| *votes).max()?;
    answers.retain(|(_, votes)| *votes == most);
    let current = answers.iter().position(|(ranges, _)| nodes.is_placed(ranges)).unwrap_or(0);
    Some(answers.swap_remove(current).0)
}

/// Asks the nodes that the settings name: the first answer counts. Says with a failure who was asked last.
async fn named(
    settings: &RedisSettings,
    seeds: &[RedisNode],
) -> Result<Vec<SlotRange>, (OriginError, Option<RedisNode>)> {
    // Dropped with the first answer, which ends the other questions.
    let mut asking = JoinSet::new();
    for seed in seeds {
        let (mut settings, seed) = (settings.clone(), seed.clone());
        settings.place = RedisTarget::Single(seed.clone());
        asking.spawn(async move {
            let asked = async { read_slots(&dial(&settings).await?, &seed).await };
            asked.await.map_err(|error| (error, seed))
        });
    }
    let mut last = (OriginError::Down, None);
    while let Some(answered) = asking.join_next().await {
        match answered {
            Ok(Ok(ranges)) => return Ok(ranges),
            Ok(Err((error, seed))) => last = (error.at(&seed), Some(seed)),
            // The task was stopped with the runtime.
            Err(_) => {}
        }
    }
    Err(last)
}
