//! Records in pull responses: the native form of `split_records` in `rocketpy/protocol/message/record.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::DETACH_BYTES;
use crate::record::{FIXED_BYTES, MAGIC, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, body_crc, i32_at, i64_at};

/// Size of the fields before the body, with IPv4 hosts.
const HEAD_BYTES: usize = 88;
/// Bits of sysFlag: a compressed body, IPv6 hosts.
const UNUSUAL: i32 = 0x1 | 0x10 | 0x20;

/// A usual record: where it and its parts begin and end.
struct Record {
    start: usize,
    body_end: usize,
    end: usize,
    queue_offset: i64,
}

/// Return the record at `start`, or None if it is not usual.
fn usual_record(data: &[u8], start: usize, topic: &[u8], queue_id: i64, check_crc: bool) -> Option<Record> {
    let size = usize::try_from(i32_at(data, start)?).ok()?;
    if size < FIXED_BYTES {
        return None;
    }
    let record = data.get(start..start.checked_add(size)?)?;
    let body_length = usize::try_from(i32_at(record, HEAD_BYTES - 4)?).ok()?;
    let body = record.get(HEAD_BYTES..HEAD_BYTES.checked_add(body_length)?)?;
    let (&topic_length, rest) = record[HEAD_BYTES + body_length..].split_first()?;
    let (record_topic, rest) = rest.split_at_checked(topic_length.into())?;
    let (length, properties) = rest.split_first_chunk::<2>()?;
    let is_usual = i32_at(record, 4)? as u32 == MAGIC
        && i64::from(i32_at(record, 12)?) == queue_id
        && i32_at(record, 36)? & UNUSUAL == 0
        && record_topic == topic
        && usize::from(u16::from_be_bytes(*length)) == properties.len()
        && properties.len() <= MAX_PROPERTIES_BYTES
        && (!check_crc || body_crc(body) == i32_at(record, 8)? as u32);
    is_usual.then_some(Record {
        start,
        body_end: start + HEAD_BYTES + body_length,
        end: start + size,
        queue_offset: i64_at(record, 20)?,
    })
}

/// Split usual records of one queue, from `start` to the first record that is not usual.
///
/// Return where that one begins; then envelopes (records without their bodies), bodies and queue offsets.
#[pyfunction]
pub fn split_records<'py>(
    py: Python<'py>,
    data: &[u8],
    start: usize,
    topic: &[u8],
    queue_id: i64,
    check_crc: bool,
) -> PyResult<(usize, Bound<'py, PyList>, Bound<'py, PyList>, Vec<i64>)> {
    let scan = || {
        let mut found = Vec::with_capacity(data.len() / 256);
        let mut at = start;
        while topic.len() <= MAX_TOPIC_BYTES
            && let Some(record) = usual_record(data, at, topic, queue_id, check_crc)
        {
            at = record.end;
            found.push(record);
        }
        (at, found)
    };
    let (end, found) = if data.len() > DETACH_BYTES { py.detach(scan) } else { scan() };
    let mut scratch = Vec::new();
    let envelopes = PyList::new(
        py,
        found.iter().map(|record| {
            scratch.clear();
            scratch.extend_from_slice(&data[record.start..record.start + HEAD_BYTES]);
            scratch.extend_from_slice(&data[record.body_end..record.end]);
            PyBytes::new(py, &scratch)
        }),
    )?;
    let bodies =
        found.iter().map(|record| PyBytes::new(py, &data[record.start + HEAD_BYTES..record.body_end]));
    let bodies = PyList::new(py, bodies)?;
    let queue_offsets = found.iter().map(|record| record.queue_offset).collect();
    Ok((end, envelopes, bodies, queue_offsets))
}
