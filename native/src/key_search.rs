//! Look-ups by key: the native forms of `rocketpy_broker/store/queue/key_search.py`, and the hash of one key.

use pyo3::prelude::*;

use crate::java::{extend_hash, positive};

const MESSAGE_MAGIC: u32 = 0xDAA3_20A7;
/// Where the body begins in a record with IPv4 hosts.
const BODY_AT: usize = 88;
/// Both flags of IPv6 hosts.
const V6: u32 = 0x30;
const TOPIC_BYTES_MAX: usize = 127;
const PROPERTIES_BYTES_MAX: usize = 32767;
const NOT_STORED: u8 = 0;
const OTHER_KEY: u8 = 1;
const HAS_KEY: u8 = 2;

fn bytes_at<const COUNT: usize>(data: &[u8], at: usize) -> [u8; COUNT] {
    data[at..at + COUNT].try_into().expect("the length is checked")
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes_at(data, at))
}

fn i64_at(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes_at(data, at))
}

/// KEYS and UNIQ_KEY in properties; None for malformed properties.
fn keys_of(properties: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut keys, mut unique_key): (&[u8], &[u8]) = (b"", b"");
    for piece in properties.split(|byte| *byte == 2) {
        let (name, value) = match piece.split_at_checked(5) {
            Some((name @ (b"KEYS\x01" | b"TAGS\x01"), value)) => (name, value),
            _ => match piece.strip_prefix(b"UNIQ_KEY\x01") {
                Some(value) => (&b"UNIQ_KEY"[..], value),
                None => continue,
            },
        };
        if value.contains(&1) || value.is_empty() {
            return None;
        }
        match name {
            b"KEYS\x01" => keys = value,
            b"UNIQ_KEY" => unique_key = value,
            _ => {}
        }
    }
    Some((keys, unique_key))
}

/// Leaves bytes that are not UTF-8 to the Python form, which is in `rocketpy_broker/store/index/index_hash.py`.
#[pyfunction]
pub fn index_hash(topic: &[u8], key: &[u8]) -> Option<i32> {
    let of_topic = extend_hash(extend_hash(0, topic)?, b"#")?;
    extend_hash(of_topic, key).map(positive)
}

/// Leaves IPv6 hosts, topics that are not ASCII and malformed properties to the Python form.
#[pyfunction]
pub fn match_key(record: &[u8], offset: i64, topic: &[u8], key: &[u8], begin: i64, end: i64) -> Option<u8> {
    if record.len() < BODY_AT + 3 || u32_at(record, 36) & V6 != 0 {
        return None;
    }
    let is_at_place = u32_at(record, 0) as usize == record.len()
        && u32_at(record, 4) == MESSAGE_MAGIC
        && i64_at(record, 28) == offset;
    let is_in_time = (begin..=end).contains(&i64_at(record, 56));
    let rest = &record[BODY_AT..];
    let body_bytes = u32_at(record, BODY_AT - 4) as usize;
    if !is_at_place || !is_in_time || body_bytes > rest.len() - 3 {
        return Some(NOT_STORED);
    }
    let (body, rest) = rest.split_at(body_bytes);
    let topic_bytes = usize::from(rest[0]);
    if topic_bytes > TOPIC_BYTES_MAX || topic_bytes + 3 > rest.len() {
        return Some(NOT_STORED);
    }
    let (stored_topic, rest) = rest[1..].split_at(topic_bytes);
    let properties = &rest[2..];
    let is_whole = usize::from(u16::from_be_bytes(bytes_at(rest, 0))) == properties.len()
        && properties.len() <= PROPERTIES_BYTES_MAX;
    if !is_whole || crc32fast::hash(body) & 0x7FFF_FFFF != u32_at(record, 8) {
        return Some(NOT_STORED);
    }
    if !stored_topic.is_ascii() {
        return None;
    }
    let (keys, unique_key) = keys_of(properties)?;
    let has_key = unique_key == key || keys.split(|byte| *byte == b' ').any(|one| one == key);
    Some(if stored_topic == topic && has_key { HAS_KEY } else { OTHER_KEY })
}
