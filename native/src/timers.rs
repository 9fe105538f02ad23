//! Timers: the native form of `rocketpy_broker/services/timers/batches.py`.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::java::extend_hash;
use crate::record::{Record, V6, body_crc, i32_at, i64_at, property_value};

const UNIT_BYTES: usize = 52;
const KIND: i32 = 1;
const ROLLS: i32 = 2;
const RECALLS: i32 = 4;
const NO_UNIT: i64 = -1;
const WHEEL_MS: i64 = 1_209_600 * 1000;
const BLANK_MS: i64 = 60 * 1000;
const DELAY_MAX_MS: i64 = i32::MAX as i64;
const TIMER_TOPIC: &[u8] = b"rmq_sys_wheel_timer";
/// What the copy of a due message does not have, or gets again.
const REMOVED: [&[u8]; 3] = [b"__TIMER_DUE_MS\x01", b"TIMER_ENQUEUE_MS\x01", b"TIMER_DEQUEUE_MS\x01"];

/// Values of the properties of a timer; empty when missing.
#[derive(Default)]
struct Timer<'a> {
    out_ms: &'a [u8],
    due_ms: &'a [u8],
    topic: &'a [u8],
    queue_id: &'a [u8],
    recalled: &'a [u8],
}

impl<'a> Timer<'a> {
    /// Reads them as `properties.find` does: of two with the same name the last one counts.
    fn of(properties: &'a [u8]) -> Self {
        let mut timer = Timer::default();
        for piece in properties.split(|byte| *byte == 2) {
            let (field, value) = if let Some(value) = piece.strip_prefix(b"TIMER_OUT_MS\x01") {
                (&mut timer.out_ms, value)
            } else if let Some(value) = piece.strip_prefix(b"__TIMER_DUE_MS\x01") {
                (&mut timer.due_ms, value)
            } else if let Some(value) = piece.strip_prefix(b"REAL_TOPIC\x01") {
                (&mut timer.topic, value)
            } else if let Some(value) = piece.strip_prefix(b"REAL_QID\x01") {
                (&mut timer.queue_id, value)
            } else if let Some(value) = piece.strip_prefix(b"TIMER_DEL_UNIQKEY\x01") {
                (&mut timer.recalled, value)
            } else {
                continue;
            };
            if let Some(value) = property_value(value) {
                *field = value;
            }
        }
        timer
    }
}

/// Reads decimal digits; `None` for other forms of numbers, which Python may read.
fn number(text: &[u8]) -> Option<i64> {
    let is_plain = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_plain.then(|| text.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
}

/// Why reading ends.
enum Stop {
    /// Before a record that is not usual.
    Here,
    /// The Python form handles the whole call.
    Python,
}

/// Returns the record of this place, if it is intact.
fn record_at(data: &[u8], begin: i64, physical: i64, size: i64) -> Result<Record<'_>, Stop> {
    let at = physical.checked_sub(begin).and_then(|at| usize::try_from(at).ok()).ok_or(Stop::Python)?;
    let record = Record::at(data, at).ok_or(Stop::Here)?;
    if record.sys_flag & V6 != 0 || !record.topic.is_ascii() {
        return Err(Stop::Python);
    }
    let is_intact = record.size as i64 == size
        && record.physical_offset == physical
        && body_crc(record.body) == record.crc;
    if is_intact { Ok(record) } else { Err(Stop::Here) }
}

fn second_of(time_ms: i64) -> i64 {
    time_ms.div_euclid(1000)
}

/// New units of one slot: its second, the positions of the first and last one, and the change of timers.
type NewInSlot = (i64, i64, i64, i64);

/// The results of `timer_units`, as it reads one record after the other.
struct Units<'a> {
    position: i64,
    now_ms: i64,
    read_ms: i64,
    window_ms: i64,
    encoded: Vec<u8>,
    slots: Vec<NewInSlot>,
    by_second: HashMap<i64, usize>,
    topics: Vec<(&'a [u8], i32, i64)>,
}

impl<'a> Units<'a> {
    fn add(&mut self, record: &Record<'a>) -> Result<(), Stop> {
        let timer = Timer::of(record.properties);
        if timer.out_ms.is_empty() || timer.topic.is_empty() {
            return Err(Stop::Here);
        }
        let mut slot_ms = second_of(number(timer.out_ms).ok_or(Stop::Python)?) * 1000;
        let mut due_ms =
            if timer.due_ms.is_empty() { 0 } else { number(timer.due_ms).ok_or(Stop::Python)? };
        if slot_ms <= 0 {
            return Err(Stop::Here);
        }
        if due_ms <= slot_ms || due_ms > slot_ms + 1000 {
            due_ms = 0;
        }
        let recalls = !timer.recalled.is_empty();
        let mut kind = if recalls { KIND | RECALLS } else { KIND };
        let stored_ms = second_of(record.store_timestamp).checked_mul(1000).ok_or(Stop::Python)?;
        let left_ms = slot_ms.checked_sub(stored_ms).ok_or(Stop::Python)?;
        if left_ms >= self.window_ms {
            kind |= ROLLS;
            let window = second_of(self.window_ms);
            let is_almost = left_ms - self.window_ms < window.div_euclid(3) * 1000;
            slot_ms = stored_ms + if is_almost { window.div_euclid(2) } else { window } * 1000;
            due_ms = slot_ms;
        }
        slot_ms = slot_ms.max(self.read_ms);
        if slot_ms > self.read_ms + WHEEL_MS - BLANK_MS {
            kind |= ROLLS;
            slot_ms = self.read_ms + self.window_ms;
            due_ms = slot_ms;
        }
        let change = if recalls { -1 } else { 1 };
        let topic_hash = self.count(timer.topic, change)?;
        let previous = self.link(second_of(slot_ms), change);
        let enqueued_ms = self.now_ms.max(slot_ms - DELAY_MAX_MS).min(slot_ms + DELAY_MAX_MS);
        self.encoded.extend_from_slice(&(UNIT_BYTES as i32).to_be_bytes());
        self.encoded.extend_from_slice(&previous.to_be_bytes());
        self.encoded.extend_from_slice(&kind.to_be_bytes());
        self.encoded.extend_from_slice(&enqueued_ms.to_be_bytes());
        self.encoded.extend_from_slice(&((slot_ms - enqueued_ms) as i32).to_be_bytes());
        self.encoded.extend_from_slice(&record.physical_offset.to_be_bytes());
        self.encoded.extend_from_slice(&(record.size as i32).to_be_bytes());
        self.encoded.extend_from_slice(&topic_hash.to_be_bytes());
        self.encoded.extend_from_slice(&due_ms.to_be_bytes());
        self.position += UNIT_BYTES as i64;
        Ok(())
    }

    /// Counts a timer of a topic; returns the hash of the topic.
    fn count(&mut self, topic: &'a [u8], change: i64) -> Result<i32, Stop> {
        if let Some((_, hash, count)) = self.topics.iter_mut().find(|(other, ..)| *other == topic) {
            *count += change;
            return Ok(*hash);
        }
        let hash = extend_hash(0, topic).ok_or(Stop::Python)? as i32;
        self.topics.push((topic, hash, change));
        Ok(hash)
    }

    /// Makes the next unit the last one of a slot; returns the position of the one before.
    fn link(&mut self, second: i64, change: i64) -> i64 {
        let next = self.slots.len();
        let index = *self.by_second.entry(second).or_insert(next);
        if index == next {
            self.slots.push((second, self.position, NO_UNIT, 0));
        }
        let (_, _, last, timers) = &mut self.slots[index];
        *timers += change;
        std::mem::replace(last, self.position)
    }
}

type NewOfTopic<'py> = (Bound<'py, PyBytes>, i32, i64);

/// Parameters: see the Python form.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn timer_units<'py>(
    py: Python<'py>,
    data: &[u8],
    begin: i64,
    places: Vec<(i64, i64)>,
    position: i64,
    now_ms: i64,
    read_ms: i64,
    window_ms: i64,
) -> Option<(Bound<'py, PyBytes>, Vec<NewInSlot>, Vec<NewOfTopic<'py>>)> {
    let is_time = |time_ms: &i64| (0..1 << 60).contains(time_ms); // sums of two fit
    if ![position, now_ms, read_ms, window_ms].iter().all(is_time) {
        return None;
    }
    let mut units = Units {
        position,
        now_ms,
        read_ms,
        window_ms,
        encoded: Vec::with_capacity(places.len() * UNIT_BYTES),
        slots: Vec::new(),
        by_second: HashMap::new(),
        topics: Vec::new(),
    };
    for (physical, size) in places {
        match record_at(data, begin, physical, size).and_then(|record| units.add(&record)) {
            Ok(()) => {}
            Err(Stop::Here) => break,
            Err(Stop::Python) => return None,
        }
    }
    let topics = units.topics.iter().map(|(topic, hash, count)| (PyBytes::new(py, topic), *hash, *count));
    Some((PyBytes::new(py, &units.encoded), units.slots, topics.collect()))
}

/// Returns the properties with the times of the wheel, and without the due time.
fn properties_of_due(properties: &[u8], enqueued_ms: i64, now_ms: i64) -> Vec<u8> {
    let end = properties.iter().rposition(|byte| *byte != 2).map_or(0, |last| last + 1);
    let mut left = Vec::with_capacity(end + 80);
    for piece in properties[..end].split(|byte| *byte == 2) {
        if !REMOVED.iter().any(|name| piece.starts_with(name)) {
            left.extend_from_slice(piece);
            left.push(2);
        }
    }
    let times = format!("TIMER_ENQUEUE_MS\x01{enqueued_ms}\x02TIMER_DEQUEUE_MS\x01{now_ms}\x02");
    left.extend_from_slice(times.as_bytes());
    left
}

type DueMessage<'py> = (
    i64,
    i32,
    Bound<'py, PyString>,
    i32,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    i32,
    i32,
    i64,
    Bound<'py, PyBytes>,
    i32,
);

/// Parameters: see the Python form.
#[pyfunction]
pub fn due_messages<'py>(
    py: Python<'py>,
    units: &[u8],
    data: &[u8],
    begin: i64,
    copies_below: i64,
    now_ms: i64,
) -> Option<Vec<DueMessage<'py>>> {
    if units.len() % UNIT_BYTES != 0 {
        return None;
    }
    let mut found = Vec::with_capacity(units.len() / UNIT_BYTES);
    let mut last: Option<(&[u8], Bound<'py, PyString>)> = None;
    for unit in units.chunks_exact(UNIT_BYTES) {
        let (physical, size) = (i64_at(unit, 28)?, i32_at(unit, 36)?);
        if i32_at(unit, 12)? != KIND || physical < copies_below {
            break;
        }
        let record = match record_at(data, begin, physical, i64::from(size)) {
            Ok(record) => record,
            Err(Stop::Here) => break,
            Err(Stop::Python) => return None,
        };
        let timer = Timer::of(record.properties);
        if record.topic != TIMER_TOPIC || timer.topic.is_empty() || timer.queue_id.is_empty() {
            break;
        }
        let queue_id = i32::try_from(number(timer.queue_id)?).ok()?;
        let topic = match &last {
            Some((name, topic)) if *name == timer.topic => topic.clone(),
            _ => PyString::new(py, std::str::from_utf8(timer.topic).ok()?),
        };
        last = Some((timer.topic, topic.clone()));
        let head = &data[(physical - begin) as usize..];
        found.push((
            physical,
            i32_at(unit, 40)?,
            topic,
            queue_id,
            PyBytes::new(py, record.body),
            PyBytes::new(py, &properties_of_due(record.properties, i64_at(unit, 16)?, now_ms)),
            i32_at(head, 16)?,
            record.sys_flag,
            i64_at(head, 40)?,
            PyBytes::new(py, &head[48..56]),
            i32_at(head, 72)?,
        ));
    }
    Some(found)
}
