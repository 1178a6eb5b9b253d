//! Which slot of a Cluster a key is in: keys of one call have to share it.
//!
//! Redis hashes only what stands between the braces of a name. There it finds one of 256 tags, so that keys share slots, and
//! many of them go in one call. It is two letters from `a` to `p`, one for each half of the first byte of the key's digest:
//! those spread evenly over the nodes of a Cluster, however many there are.

use crate::engine::reach::Store;
use crate::regional::call::OriginKey;
use crate::regional::node_map::SLOTS;
use crate::regional::redis::codec::processes_key;
use crate::regional::redis::voice::voice_key;

/// The slot of every cell of a key.
pub(crate) fn cluster_slot(key: &OriginKey) -> u16 {
    crc16(&tag_letters(key.tag())) % SLOTS
}

/// The slot of what heartbeats are about.
pub(crate) fn beat_slot(store: Store) -> u16 {
    slot_of_name(processes_key(store).as_bytes())
}

/// The slot of the region's voice: who speaks, what is mentioned, what is handed on.
pub(crate) fn voice_slot() -> u16 {
    slot_of_name(&voice_key("voice"))
}

/// The slot of a name: Redis hashes only what stands between the first braces, if that is anything.
pub(super) fn slot_of_name(name: &[u8]) -> u16 {
    let tag = name.split(|byte| *byte == b'{').nth(1);
    let tag = tag.filter(|rest| rest.contains(&b'}')).and_then(|rest| rest.split(|byte| *byte == b'}').next());
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(name)) % SLOTS
}

/// A tag as it stands in names.
pub(crate) fn tag_letters(tag: u8) -> [u8; 2] {
    [tag >> 4, tag & 0xf].map(|half| b'a' + half)
}

/// CRC16 as the Cluster specification has it (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(
            crc ^ (u16::from(*byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_check_value_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    /// The slot of each tag.
    fn slots() -> Vec<u16> {
        (0..=u8::MAX).map(|tag| crc16(&tag_letters(tag)) % SLOTS).collect()
    }

    #[test]
    fn every_tag_has_a_slot_of_its_own() {
        assert_eq!(slots().into_iter().collect::<HashSet<_>>().len(), 256);
    }

    /// Nodes that divide the slots among themselves, as they do when a Cluster is made, have much the same number of tags.
    #[test]
    fn tags_spread_evenly_over_the_nodes() {
        let slots = slots();
        for nodes in 1..=25 {
            let mut tags = vec![0; nodes];
            for slot in &slots {
                tags[usize::from(*slot) * nodes / usize::from(SLOTS)] += 1;
            }
            let most: usize = *tags.iter().max().unwrap();
            let tenths = if nodes <= 10 { 12 } else { 15 };
            assert!(most * nodes * 10 <= slots.len() * tenths, "{nodes} nodes: {tags:?}");
        }
    }
}
