//! Records in pull responses: the native form of `split_records` in `rocketpy/protocol/message/record.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

const MAGIC: u32 = 0xDAA320A7;
const HEAD_BYTES: usize = 88;
const FIXED_BYTES: usize = 91;
const MAX_TOPIC_BYTES: usize = 127;
const MAX_PROPERTIES_BYTES: usize = 32767;
/// Bits of sysFlag: a compressed body, IPv6 hosts.
const UNUSUAL: u32 = 0x1 | 0x10 | 0x20;
/// Work on more bytes lets other Python threads run.
const DETACHED_BYTES: usize = 1 << 16;

/// A usual record: where it and its parts begin and end.
struct Record {
    start: usize,
    body_end: usize,
    end: usize,
    queue_offset: i64,
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

/// Return the record at `start`, or None if it is not usual.
fn usual_record(data: &[u8], start: usize, topic: &[u8], queue_id: i64, check_crc: bool) -> Option<Record> {
    let size = u32_at(data, start)? as usize;
    if size < FIXED_BYTES {
        return None;
    }
    let record = data.get(start..start.checked_add(size)?)?;
    let body_length = u32_at(record, HEAD_BYTES - 4)? as usize;
    let body = record.get(HEAD_BYTES..HEAD_BYTES.checked_add(body_length)?)?;
    let (&topic_length, rest) = record[HEAD_BYTES + body_length..].split_first()?;
    let (record_topic, rest) = rest.split_at_checked(topic_length.into())?;
    let (length, properties) = rest.split_first_chunk::<2>()?;
    let is_usual = u32_at(record, 4)? == MAGIC
        && i64::from(u32_at(record, 12)? as i32) == queue_id
        && u32_at(record, 36)? & UNUSUAL == 0
        && record_topic == topic
        && usize::from(u16::from_be_bytes(*length)) == properties.len()
        && properties.len() <= MAX_PROPERTIES_BYTES
        && (!check_crc || crc32fast::hash(body) & 0x7FFF_FFFF == u32_at(record, 8)?);
    is_usual.then_some(Record {
        start,
        body_end: start + HEAD_BYTES + body_length,
        end: start + size,
        queue_offset: i64::from_be_bytes(*record[20..].first_chunk()?),
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
    let (end, found) = if data.len() > DETACHED_BYTES { py.detach(scan) } else { scan() };
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
