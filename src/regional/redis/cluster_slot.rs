//! Which slot of a Cluster a key is in: keys of one call have to share it.

use crate::engine::reach::Store;
use crate::regional::call::OriginKey;
use crate::regional::node_map::SLOTS;
use crate::regional::redis::codec::{bucket_key, processes_key};

/// The slot of every cell of a key.
pub(crate) fn cluster_slot(key: &OriginKey) -> u16 {
    slot_of_name(&bucket_key(key))
}

/// The slot of what heartbeats are about.
pub(crate) fn beat_slot(store: Store) -> u16 {
    slot_of_name(processes_key(store).as_bytes())
}

/// The slot of a name: Redis hashes only what stands between the first braces, if that is anything.
pub(super) fn slot_of_name(name: &[u8]) -> u16 {
    let tag = name.split(|byte| *byte == b'{').nth(1);
    let tag = tag.filter(|rest| rest.contains(&b'}')).and_then(|rest| rest.split(|byte| *byte == b'}').next());
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(name)) % SLOTS
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
    use super::*;

    #[test]
    fn the_check_value_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }
}
