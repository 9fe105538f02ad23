//! Records in pull responses: the native form of `split_records` in `rocketpy/protocol/message/record.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::detached;
use crate::record::{Record, V6, body_crc};

/// Size of the fields before the body, with IPv4 hosts.
const HEAD_BYTES: usize = 88;
/// Bits of sysFlag: a compressed body, IPv6 hosts.
const UNUSUAL: i32 = 0x1 | V6;

/// Where a usual record and its parts begin and end.
struct Place {
    start: usize,
    body_end: usize,
    end: usize,
    queue_offset: i64,
}

/// Return the place of the record at `start`, or None if it is not usual.
fn usual_record(data: &[u8], start: usize, topic: &[u8], queue_id: i64, check_crc: bool) -> Option<Place> {
    let record = Record::at(data, start)?;
    let is_usual = i64::from(record.queue_id) == queue_id
        && record.sys_flag & UNUSUAL == 0
        && record.topic == topic
        && (!check_crc || body_crc(record.body) == record.crc);
    is_usual.then_some(Place {
        start,
        body_end: start + HEAD_BYTES + record.body.len(),
        end: start + record.size,
        queue_offset: record.queue_offset,
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
        while let Some(record) = usual_record(data, at, topic, queue_id, check_crc) {
            at = record.end;
            found.push(record);
        }
        (at, found)
    };
    let (end, found) = detached(py, data.len(), scan);
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
