//! What dispatch needs from records of the log: the native form of
//! `rocketpy_broker/store/queue/log_fields.py`.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::java::{extend_hash, positive};
use crate::record::{Record, body_crc, property_value};

const NOT_IN_QUEUE: i32 = 0x4;
const ROLLBACK: i32 = 0xC;
const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";

/// Values of the properties that consume queues and index depend on; empty when missing.
#[derive(Default)]
pub struct Fields<'a> {
    tags: &'a [u8],
    pub keys: &'a [u8],
    pub unique_key: &'a [u8],
    delay: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads them as `properties.decode` does: malformed pieces are skipped, and of two with the same name the
    /// last one counts.
    pub fn of(properties: &'a [u8]) -> Self {
        let mut fields = Fields::default();
        for piece in properties.split(|byte| *byte == 2) {
            let (field, value) = if let Some(value) = piece.strip_prefix(b"TAGS\x01") {
                (&mut fields.tags, value)
            } else if let Some(value) = piece.strip_prefix(b"KEYS\x01") {
                (&mut fields.keys, value)
            } else if let Some(value) = piece.strip_prefix(b"UNIQ_KEY\x01") {
                (&mut fields.unique_key, value)
            } else if let Some(value) = piece.strip_prefix(b"DELAY\x01") {
                (&mut fields.delay, value)
            } else {
                continue;
            };
            if let Some(value) = property_value(value) {
                *field = value;
            }
        }
        fields
    }
}

/// Consecutive units of one queue.
struct Units<'a> {
    topic: &'a [u8],
    queue_id: i32,
    first: i64,
    begin: i64,
    end: i64,
    size: i64,
    units: Vec<u8>,
    /// Records that end after this offset begin another object.
    until: i64,
}

impl Units<'_> {
    fn next_offset(&self) -> Option<i64> {
        self.first.checked_add((self.units.len() / 20) as i64)
    }
}

/// The results of a call, as it reads one record after the other.
#[derive(Default)]
struct Reader<'a> {
    position: usize,
    count: usize,
    begin: i64,
    end: i64,
    first_ms: i64,
    last_ms: i64,
    steps: Vec<(i64, i64, i64)>,
    queues: Vec<Units<'a>>,
    entries: Vec<u8>,
    newest: HashMap<(&'a [u8], i32), usize>,
    /// The queue of the last record, in `queues`.
    last: usize,
    topic: &'a [u8],
    topic_hash: u32,
}

/// Why reading ends before the end of the data.
enum Stop {
    /// At a record that is damaged, incomplete, or not accepted.
    Here,
    /// The Python form handles the whole call.
    Python,
    Error(PyErr),
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Stop::Error(error)
    }
}

impl<'a> Reader<'a> {
    fn read_all(
        &mut self,
        data: &'a [u8],
        base: i64,
        check_crc: bool,
        delays_ms: &[i64],
        accept: impl Fn(&[u8], i32, i64, i64) -> PyResult<i64>,
    ) -> Result<(), Stop> {
        while let Some(record) = Record::at(data, self.position) {
            self.read(&record, base, check_crc, delays_ms, &accept)?;
        }
        Ok(())
    }

    fn read(
        &mut self,
        record: &Record<'a>,
        base: i64,
        check_crc: bool,
        delays_ms: &[i64],
        accept: &impl Fn(&[u8], i32, i64, i64) -> PyResult<i64>,
    ) -> Result<(), Stop> {
        let offset = record.physical_offset;
        let end = offset.checked_add(record.size as i64).ok_or(Stop::Python)?;
        let is_in_queue = record.sys_flag & NOT_IN_QUEUE == 0;
        if (base >= 0 && (offset != base.wrapping_add(self.position as i64) || !is_in_queue))
            || record.topic.is_empty()
            || record.queue_id < 0
            || record.topic.contains(&0)
            || record.properties.contains(&0)
            || (check_crc && body_crc(record.body) != record.crc)
        {
            return Err(Stop::Here);
        }
        let fields = Fields::of(record.properties);
        if is_in_queue {
            let code = tags_code(record, &fields, delays_ms).ok_or(Stop::Python)?;
            let units = self.units_of(record, end, accept)?;
            units.units.extend_from_slice(&offset.to_be_bytes());
            units.units.extend_from_slice(&(record.size as i32).to_be_bytes());
            units.units.extend_from_slice(&code.to_be_bytes());
            units.end = end;
            units.size += record.size as i64;
        }
        if record.sys_flag & ROLLBACK != ROLLBACK {
            self.index(record, &fields).ok_or(Stop::Python)?;
        }
        let time = record.store_timestamp;
        if self.count == 0 {
            self.begin = offset;
            self.first_ms = time;
        } else if time < self.last_ms {
            self.steps.push((offset, self.last_ms, time));
        }
        self.count += 1;
        self.end = end;
        self.last_ms = time;
        self.position += record.size;
        Ok(())
    }

    /// Returns the units that the record's unit belongs to.
    fn units_of(
        &mut self,
        record: &Record<'a>,
        end: i64,
        accept: &impl Fn(&[u8], i32, i64, i64) -> PyResult<i64>,
    ) -> Result<&mut Units<'a>, Stop> {
        let is_last = self
            .queues
            .get(self.last)
            .is_some_and(|units| units.queue_id == record.queue_id && units.topic == record.topic);
        let key = (record.topic, record.queue_id);
        let known = if is_last { Some(self.last) } else { self.newest.get(&key).copied() };
        let follows = |units: &Units| units.next_offset() == Some(record.queue_offset) && end <= units.until;
        let index = match known {
            Some(index) if follows(&self.queues[index]) => index,
            _ => {
                let until = accept(record.topic, record.queue_id, record.queue_offset, end)?;
                if until < end {
                    return Err(Stop::Here);
                }
                self.newest.insert(key, self.queues.len());
                self.queues.push(Units {
                    topic: record.topic,
                    queue_id: record.queue_id,
                    first: record.queue_offset,
                    begin: record.physical_offset,
                    end,
                    size: 0,
                    units: Vec::new(),
                    until,
                });
                self.queues.len() - 1
            }
        };
        self.last = index;
        Ok(&mut self.queues[index])
    }

    /// Adds the index entries of a record; `None` if a key is not valid UTF-8.
    fn index(&mut self, record: &Record<'a>, fields: &Fields) -> Option<()> {
        if self.topic != record.topic {
            self.topic_hash = extend_hash(extend_hash(0, record.topic)?, b"#")?;
            self.topic = record.topic;
        }
        let keys = fields.keys.split(|byte| *byte == b' ');
        for key in std::iter::once(fields.unique_key).chain(keys).filter(|key| !key.is_empty()) {
            let hash = positive(extend_hash(self.topic_hash, key)?);
            self.entries.extend_from_slice(&hash.to_be_bytes());
            self.entries.extend_from_slice(&record.physical_offset.to_be_bytes());
            self.entries.extend_from_slice(&record.store_timestamp.to_be_bytes());
        }
        Some(())
    }
}

/// Returns Java's hash of the tags, or when a delayed record is due; `None` for rare forms.
fn tags_code(record: &Record, fields: &Fields, delays_ms: &[i64]) -> Option<i64> {
    if record.topic == SCHEDULE_TOPIC && !fields.delay.is_empty() {
        if fields.delay.len() > 9 || !fields.delay.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let level: usize = std::str::from_utf8(fields.delay).ok()?.parse().ok()?;
        if let Some(last) = level.min(delays_ms.len()).checked_sub(1) {
            return record.store_timestamp.checked_add(delays_ms[last]);
        }
    }
    Some(i64::from(extend_hash(0, fields.tags)? as i32))
}

type UnitsOfQueue<'py> = (Bound<'py, PyBytes>, i32, i64, i64, i64, i64, Bound<'py, PyBytes>);
type LogFields<'py> =
    (usize, usize, i64, i64, i64, i64, Vec<(i64, i64, i64)>, Vec<UnitsOfQueue<'py>>, Bound<'py, PyBytes>);

#[pyfunction]
pub fn read_log_fields<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    base: i64,
    check_crc: bool,
    delays_ms: &Bound<'py, PyList>,
    accept: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<LogFields<'py>>> {
    let delays_ms: Vec<i64> = delays_ms.extract()?;
    let mut reader = Reader { position: at, ..Reader::default() };
    let stop = match accept {
        Some(accept) => {
            let ask = |topic: &[u8], queue_id, queue_offset, end| {
                accept.call1((PyBytes::new(py, topic), queue_id, queue_offset, end))?.extract()
            };
            reader.read_all(data, base, check_crc, &delays_ms, ask)
        }
        None => {
            let any = |_: &[u8], _, _, _| Ok(i64::MAX);
            crate::detached(py, data.len(), || reader.read_all(data, base, check_crc, &delays_ms, any))
        }
    };
    match stop {
        Ok(()) | Err(Stop::Here) => {}
        Err(Stop::Python) => return Ok(None),
        Err(Stop::Error(error)) => return Err(error),
    }
    let bytes = |data: &[u8]| PyBytes::new(py, data);
    let queues = reader.queues.iter().map(|units| {
        let Units { topic, queue_id, first, begin, end, size, units, .. } = units;
        (bytes(topic), *queue_id, *first, *begin, *end, *size, bytes(units))
    });
    Ok(Some((
        reader.position,
        reader.count,
        reader.begin,
        reader.end,
        reader.first_ms,
        reader.last_ms,
        reader.steps.clone(),
        queues.collect(),
        bytes(&reader.entries),
    )))
}
