//! The calls of a region to its Redis, in the region's own words. Only this folder knows how they are written, and that
//! scripts serve them.

use std::time::{Duration, Instant};

use redis::Value;

use crate::engine::reach::Store;
use crate::regional::call::{Call, ProcessId, Reply};
use crate::regional::node_map::NodeId;
use crate::regional::redis::codec::{self, BeatReply, Invocation};
use crate::regional::redis::{Lane, OriginError, Redis, Script};
use crate::regional::region::CellField;

static ORIGIN: Script = Script::new(codec::ORIGIN);
static BEAT: Script = Script::new(codec::BEAT);
static LEAVE: Script = Script::new(codec::LEAVE);

/// How many cells one call takes the process's field out of, at most.
const LEAVE_CHUNK: usize = 256;

impl Redis {
    /// Sends a call and reads the reply. In a Cluster, all of its keys have to be in one slot.
    pub async fn call(&self, lane: Lane, call: &Call, within: Duration) -> Result<Reply, OriginError> {
        let value = self.serve(lane, call, within).await?;
        codec::decode(call, &value).map_err(|_| OriginError::BadReply)
    }

    /// Sends a replay and reads the reply, however late it is: what a replay tells must not be told again before it is gone.
    /// Says when its time is up. After `patience` nothing arrives any more.
    pub(crate) async fn replay(
        &self,
        call: &Call,
        within: Duration,
        patience: Duration,
        is_late: impl FnOnce(&OriginError),
    ) -> Result<Reply, OriginError> {
        let invocation = codec::encode(call);
        let value = self.script_to_its_end(Lane::Replays, &ORIGIN, &invocation, [within, patience], is_late).await?;
        codec::decode(call, &value).map_err(|_| OriginError::BadReply)
    }

    /// Finds out whether a node would serve a call: a server that answers PING may still refuse the script. The answer is
    /// not read.
    pub async fn try_call(&self, node: NodeId, lane: Lane, call: &Call, within: Duration) -> Result<(), OriginError> {
        self.script_at(node, lane, &ORIGIN, &codec::encode(call), within).await.map(drop)
    }

    async fn serve(&self, lane: Lane, call: &Call, within: Duration) -> Result<Value, OriginError> {
        let Invocation { keys, args } = codec::encode(call);
        match self.replicas {
            0 => self.script(lane, &ORIGIN, &keys, &args, within).await,
            _ => self.replicated_script(lane, &ORIGIN, &keys, &args, within).await,
        }
    }

    /// Tells the store that the process lives, and hears how many do.
    pub async fn beat(&self, store: Store, process: ProcessId, within: Duration) -> Result<BeatReply, OriginError> {
        let Invocation { keys, args } = codec::encode_beat(store, process);
        let value = self.script(Lane::Beats, &BEAT, &keys, &args, within).await?;
        codec::decode_beat(&value).map_err(|_| OriginError::BadReply)
    }

    /// Takes a process's fields out, so that others divide what is left among fewer.
    pub async fn take_out(&self, process: ProcessId, fields: &[CellField], until: Instant) -> Result<(), OriginError> {
        let tag = |(key, _): &CellField| if self.is_cluster() { key.tag() } else { 0 };
        let mut fields = fields.to_vec();
        fields.sort_by_key(tag);
        for chunk in fields.chunk_by(|one, other| tag(one) == tag(other)).flat_map(|of_tag| of_tag.chunks(LEAVE_CHUNK))
        {
            let left = until.saturating_duration_since(Instant::now());
            let Invocation { keys, args } = codec::encode_take_out(process, chunk);
            self.script(Lane::Replays, &LEAVE, &keys, &args, left).await?;
        }
        Ok(())
    }

    /// Tells the store that the process stops. Others notice within three seconds anyway.
    pub async fn leave(&self, store: Store, process: ProcessId, within: Duration) -> Result<(), OriginError> {
        let Invocation { keys, args } = codec::encode_leave(store, process);
        self.script(Lane::Beats, &BEAT, &keys, &args, within).await.map(drop)
    }
}
