//! Look-ups by key: the native forms of `rocketpy_broker/store/queue/key_search.py`, and the hash of one key.

use pyo3::prelude::*;

use crate::java::{extend_hash, positive};
use crate::log_fields::Fields;
use crate::record::{FIXED_BYTES, Record, V6, body_crc, i32_at};

const NOT_STORED: u8 = 0;
const OTHER_KEY: u8 = 1;
const HAS_KEY: u8 = 2;

/// Leaves bytes that are not UTF-8 to the Python form, which is in `rocketpy_broker/store/index/index_hash.py`.
#[pyfunction]
pub fn index_hash(topic: &[u8], key: &[u8]) -> Option<i32> {
    let of_topic = extend_hash(extend_hash(0, topic)?, b"#")?;
    extend_hash(of_topic, key).map(positive)
}

/// Leaves IPv6 hosts and topics that are not ASCII to the Python form.
#[pyfunction]
pub fn match_key(record: &[u8], offset: i64, topic: &[u8], key: &[u8], begin: i64, end: i64) -> Option<u8> {
    if record.len() < FIXED_BYTES || i32_at(record, 36)? & V6 != 0 {
        return None;
    }
    let Some(found) = Record::at(record, 0) else { return Some(NOT_STORED) };
    let is_stored = found.size == record.len()
        && found.physical_offset == offset
        && (begin..=end).contains(&found.store_timestamp)
        && body_crc(found.body) == found.crc;
    if !is_stored {
        return Some(NOT_STORED);
    }
    if !found.topic.is_ascii() {
        return None;
    }
    let Fields { keys, unique_key, .. } = Fields::of(found.properties);
    let has_key = unique_key == key || keys.split(|byte| *byte == b' ').any(|one| one == key);
    Some(if found.topic == topic && has_key { HAS_KEY } else { OTHER_KEY })
}
