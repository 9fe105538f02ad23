//! Columns of Spark's rows: the native forms of functions in `record_arrays.py` (the source) and
//! `encoded_rows.py` (the sink) in `integrations/spark/pyspark_rocketmq`.
//!
//! Arrays of integers go in and out as the bytes of 64-bit integers, and columns of texts as Arrow's buffers:
//! a bitmap of validity, 32-bit offsets, and the texts.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::detached;
use crate::record::{FIXED_BYTES, MAGIC, MAX_PROPERTIES_BYTES, Record, body_crc, i32_at};

fn packed(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn unpacked(numbers: &[u8]) -> impl Iterator<Item = usize> + '_ {
    numbers.chunks_exact(8).map(|raw| i64::from_ne_bytes(raw.try_into().unwrap()) as usize)
}

/// Find where each record begins.
#[pyfunction]
pub fn record_starts<'py>(py: Python<'py>, data: &[u8]) -> Option<Bound<'py, PyBytes>> {
    let mut starts = Vec::with_capacity(data.len() / 256);
    let mut at = 0;
    while data.len() - at >= FIXED_BYTES {
        let size = usize::try_from(i32_at(data, at)?).ok()?;
        if size < FIXED_BYTES || size > data.len() - at || i32_at(data, at + 4)? as u32 != MAGIC {
            return None;
        }
        starts.push(at as i64);
        at += size;
    }
    (at == data.len()).then(|| PyBytes::new(py, &packed(&starts)))
}

/// Where the parts of records are.
#[derive(Default)]
struct Parts<'a> {
    bodies: Vec<i64>,
    body_ends: Vec<i64>,
    topic_ends: Vec<i64>,
    ends: Vec<i64>,
    /// Each topic once.
    topics: Vec<&'a [u8]>,
}

fn parts_of<'a>(data: &'a [u8], starts: &[u8]) -> Option<Parts<'a>> {
    let mut parts = Parts::default();
    for start in unpacked(starts) {
        let record = Record::at(data, start)?;
        if body_crc(record.body) != record.crc {
            return None;
        }
        if parts.topics.last() != Some(&record.topic) && !parts.topics.contains(&record.topic) {
            parts.topics.push(record.topic);
        }
        let body = start + record.body_at;
        let body_end = body + record.body.len();
        parts.bodies.push(body as i64);
        parts.body_ends.push(body_end as i64);
        parts.topic_ends.push((body_end + 1 + record.topic.len()) as i64);
        parts.ends.push((start + record.size) as i64);
    }
    Some(parts)
}

type PyParts<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Vec<Bound<'py, PyBytes>>,
);

/// Find the parts of records, and check their lengths and the CRCs of their bodies.
#[pyfunction]
pub fn record_parts<'py>(py: Python<'py>, data: &[u8], starts: &[u8]) -> Option<PyParts<'py>> {
    let parts = detached(py, data.len(), || parts_of(data, starts))?;
    let column = |numbers: &[i64]| PyBytes::new(py, &packed(numbers));
    Some((
        column(&parts.bodies),
        column(&parts.body_ends),
        column(&parts.topic_ends),
        column(&parts.ends),
        parts.topics.iter().map(|topic| PyBytes::new(py, topic)).collect(),
    ))
}

/// A column of texts that is being built.
struct Texts {
    offsets: Vec<u8>,
    data: Vec<u8>,
}

impl Texts {
    fn new() -> Self {
        Texts { offsets: 0i32.to_ne_bytes().to_vec(), data: Vec::new() }
    }

    fn push(&mut self, text: &[u8]) {
        self.data.extend_from_slice(text);
        self.offsets.extend_from_slice(&(self.data.len() as i32).to_ne_bytes());
    }
}

/// A property name, as it was found so far.
struct Name {
    /// Its index in the wanted names.
    wanted: Option<usize>,
    is_hidden: bool,
    /// The row that had it last, and its index in the map of that row.
    row: usize,
    place: usize,
}

/// The columns of properties.
struct Properties {
    /// For each wanted name: the bitmap of rows that have it, and their values.
    wanted: Vec<(Vec<u8>, Texts)>,
    map_offsets: Vec<u8>,
    map_names: Texts,
    map_values: Texts,
}

/// Take the first property off a text, as `rocketpy/protocol/message/properties.py` does: (name, value, rest).
/// The value is empty if the property is malformed.
fn next_pair(text: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let separator = |text: &[u8]| text.iter().position(|byte| matches!(byte, 1 | 2)).unwrap_or(text.len());
    let name_end = separator(text);
    let (name, rest) = text.split_at(name_end);
    let [1, rest @ ..] = rest else { return (name, b"", rest.get(1..).unwrap_or(b"")) };
    let (value, after) = rest.split_at(separator(rest));
    let more = after.iter().take_while(|byte| **byte == 1).count(); // accepted at the end of a value
    match &after[more..] {
        [2, rest @ ..] => (name, value, rest),
        [] => (name, value, b""),
        malformed => {
            let end = malformed.iter().position(|byte| *byte == 2).map_or(malformed.len(), |at| at + 1);
            (name, b"", &malformed[end..])
        }
    }
}

fn properties_of(
    data: &[u8],
    begins: &[u8],
    ends: &[u8],
    wanted: &[&[u8]],
    hidden: Option<&[&[u8]]>,
) -> Option<Properties> {
    let rows = begins.len() / 8;
    let mut names: Vec<Name> = Vec::new();
    let mut known: HashMap<&[u8], usize> = HashMap::new();
    let mut guesses: Vec<(&[u8], usize)> = Vec::new(); // the properties of the last row: rows are alike
    let mut found: Vec<Option<&[u8]>> = vec![None; wanted.len()];
    let mut map: Vec<(&[u8], &[u8])> = Vec::new();
    let mut columns = Properties {
        wanted: wanted.iter().map(|_| (vec![0; rows.div_ceil(8)], Texts::new())).collect(),
        map_offsets: 0i32.to_ne_bytes().to_vec(),
        map_names: Texts::new(),
        map_values: Texts::new(),
    };
    let mut mapped = 0i32;
    for (row, (begin, end)) in unpacked(begins).zip(unpacked(ends)).enumerate() {
        let text = data.get(begin..end)?;
        std::str::from_utf8(text).ok()?;
        let (mut rest, mut index) = (text, 0);
        while !rest.is_empty() {
            let (name, value, after) = next_pair(rest);
            rest = after;
            if value.is_empty() {
                continue;
            }
            let id = match guesses.get(index) {
                Some(&(guess, id)) if guess == name => id,
                _ => {
                    let id = *known.entry(name).or_insert_with(|| {
                        names.push(Name {
                            wanted: wanted.iter().position(|other| *other == name),
                            is_hidden: hidden.is_none_or(|hidden| hidden.contains(&name)),
                            row: usize::MAX,
                            place: 0,
                        });
                        names.len() - 1
                    });
                    guesses.truncate(index);
                    guesses.push((name, id));
                    id
                }
            };
            index += 1;
            let known = &mut names[id];
            if let Some(index) = known.wanted {
                found[index] = Some(value);
            }
            if known.is_hidden {
                continue;
            }
            if known.row == row {
                map[known.place].1 = value;
            } else {
                (known.row, known.place) = (row, map.len());
                map.push((name, value));
            }
        }
        for ((valid, texts), value) in columns.wanted.iter_mut().zip(&mut found) {
            if value.is_some() {
                valid[row / 8] |= 1 << (row % 8);
            }
            texts.push(value.take().unwrap_or(b""));
        }
        mapped += map.len() as i32;
        columns.map_offsets.extend_from_slice(&mapped.to_ne_bytes());
        for (name, value) in map.drain(..) {
            columns.map_names.push(name);
            columns.map_values.push(value);
        }
    }
    Some(columns)
}

/// Split the properties of messages into columns.
#[pyfunction]
pub fn property_buffers<'py>(
    py: Python<'py>,
    data: &[u8],
    begins: &[u8],
    ends: &[u8],
    wanted: Vec<Bound<'py, PyBytes>>,
    hidden: Option<Vec<Bound<'py, PyBytes>>>,
) -> Option<Vec<Bound<'py, PyBytes>>> {
    let wanted: Vec<&[u8]> = wanted.iter().map(|name| name.as_bytes()).collect();
    let hidden: Option<Vec<&[u8]>> =
        hidden.as_ref().map(|names| names.iter().map(|name| name.as_bytes()).collect());
    let work = || properties_of(data, begins, ends, &wanted, hidden.as_deref());
    let columns = detached(py, data.len(), work)?;
    let mut buffers = Vec::new();
    for (valid, texts) in &columns.wanted {
        buffers.extend([valid, &texts.offsets, &texts.data]);
    }
    if hidden.is_some() {
        let (names, values) = (&columns.map_names, &columns.map_values);
        buffers.extend([&columns.map_offsets, &names.offsets, &names.data, &values.offsets, &values.data]);
    }
    Some(buffers.into_iter().map(|buffer| PyBytes::new(py, buffer)).collect())
}

const ELEMENT_FIXED_BYTES: usize = 22;
/// How a null or empty body is marked: see `bodies.py`.
const BODY_MARK: &[u8] = b"SPARK_BODY";
const MARKED_BODY: &[u8] = b"\0";
/// Python creates the messages one by one if there are more names of properties.
const NAMES_MAX: usize = 64;

type Raw = PyBackedBytes;
/// An Arrow column of texts: a bitmap of validity or None, 32-bit offsets, and the texts.
type RawTexts = (Option<Raw>, Raw, Raw);

/// A column of texts that is given.
struct Given<'a> {
    valid: Option<&'a [u8]>,
    offsets: &'a [u8],
    data: &'a [u8],
}

impl<'a> Given<'a> {
    fn new((valid, offsets, data): &'a RawTexts) -> Self {
        Given { valid: valid.as_deref(), offsets, data }
    }

    /// The text of a row, or None if it is null. The outer None is for offsets that are not valid.
    fn get(&self, row: usize) -> Option<Option<&'a [u8]>> {
        let is_null = |valid: &[u8]| valid.get(row / 8).is_none_or(|bits| bits >> (row % 8) & 1 == 0);
        if self.valid.is_some_and(is_null) {
            return Some(None);
        }
        let text = self.data.get(offset_at(self.offsets, row)?..offset_at(self.offsets, row + 1)?)?;
        Some(Some(text))
    }
}

/// The text of a row, or an empty one if it is null or the column is missing.
fn text_of<'a>(column: Option<&Given<'a>>, row: usize) -> Option<&'a [u8]> {
    Some(column.map_or(Some(None), |column| column.get(row))?.unwrap_or_default())
}

/// The number at this index of Arrow's offsets.
fn offset_at(numbers: &[u8], index: usize) -> Option<usize> {
    let raw = numbers.get(4 * index..4 * index + 4)?;
    usize::try_from(i32::from_ne_bytes(raw.try_into().ok()?)).ok()
}

/// Whether Python's `check_value` accepts a text. False for some that it accepts, too.
fn is_value(text: &[u8]) -> bool {
    let (mut has_separator, mut is_blank) = (false, true);
    for byte in text {
        has_separator |= matches!(byte, 1 | 2);
        is_blank &= *byte <= b' ';
    }
    !has_separator && !is_blank && std::str::from_utf8(text).is_ok()
}

fn is_tag(text: &[u8]) -> bool {
    is_value(text) && text[0] != b' ' && !text.ends_with(b" ") && !text.windows(2).any(|pair| pair == b"||")
}

fn push_property(body: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b"\x01", value, b"\x02"] {
        body.extend_from_slice(part);
    }
}

/// The columns of rows that become messages.
struct Rows<'a> {
    ids: &'a [u8],
    bodies: Given<'a>,
    tags: Option<Given<'a>>,
    keys: Option<Given<'a>>,
    properties: Option<(&'a [u8], Given<'a>, Given<'a>)>,
    flags: Option<&'a [u8]>,
    row_ids: Option<(&'a [u8], &'a [u8])>,
    numbers: &'a [u8],
}

impl<'a> Rows<'a> {
    /// Encode all rows. Also returns the names of properties, in the order of their first use.
    fn encode(&self) -> Option<(Vec<u8>, Vec<&'a [u8]>)> {
        let count = self.numbers.len() / 8;
        let width = self.ids.len().checked_div(count)?;
        let mut names: Vec<&[u8]> = Vec::new();
        let mut own: Vec<(usize, &[u8])> = Vec::new();
        let mut encoded = Vec::with_capacity(self.bodies.data.len() + count * (width + 150));
        for (row, number) in self.numbers.chunks_exact(8).enumerate() {
            let given = self.bodies.get(row)?;
            let body = given.filter(|body| !body.is_empty()).unwrap_or(MARKED_BODY);
            let start = encoded.len();
            encoded.extend_from_slice(&[0; 12]);
            let flag = self.flags.map_or(Some(&[0; 4][..]), |flags| flags.get(4 * row..4 * row + 4))?;
            encoded.extend_from_slice(&i32::from_ne_bytes(flag.try_into().ok()?).to_be_bytes());
            encoded.extend_from_slice(&i32::try_from(body.len()).ok()?.to_be_bytes());
            encoded.extend_from_slice(body);
            encoded.extend_from_slice(&[0; 2]);
            let text_at = encoded.len();
            push_property(&mut encoded, b"UNIQ_KEY", self.ids.get(row * width..(row + 1) * width)?);
            let (tag, keys) = (text_of(self.tags.as_ref(), row)?, text_of(self.keys.as_ref(), row)?);
            if !tag.is_empty() {
                is_tag(tag).then(|| push_property(&mut encoded, b"TAGS", tag))?;
            }
            if !keys.is_empty() {
                is_value(keys).then(|| push_property(&mut encoded, b"KEYS", keys))?;
            }
            if let Some((offsets, keys, values)) = &self.properties {
                own.clear();
                for at in offset_at(offsets, row)?..offset_at(offsets, row + 1)? {
                    let name = keys.get(at)??;
                    // Rows are alike, so the name is often that of the same property in the last row.
                    let id = match names.get(own.len()).filter(|guess| **guess == name) {
                        Some(_) => own.len(),
                        None => names.iter().position(|other| *other == name).unwrap_or(names.len()),
                    };
                    if id == names.len() {
                        let is_ours = name == BODY_MARK || self.row_ids.is_some_and(|(own, _)| own == name);
                        (is_value(name) && !is_ours && id < NAMES_MAX).then(|| names.push(name))?;
                    }
                    if own.iter().any(|(other, _)| *other == id) {
                        return None;
                    }
                    // An empty value stands for null, and Python reports one that is given.
                    own.push((id, values.get(at)?.map_or(Some(&b""[..]), |v| is_value(v).then_some(v))?));
                }
                own.sort_unstable_by_key(|(id, _)| *id);
                for (id, value) in own.iter().filter(|(_, value)| !value.is_empty()) {
                    push_property(&mut encoded, names[*id], value);
                }
            }
            if given.is_none_or(<[u8]>::is_empty) {
                push_property(&mut encoded, BODY_MARK, if given.is_none() { b"null" } else { b"empty" });
            }
            if let Some((name, prefix)) = self.row_ids {
                let number = i64::from_ne_bytes(number.try_into().ok()?);
                push_property(&mut encoded, name, &[prefix, number.to_string().as_bytes()].concat());
            }
            let length = encoded.len() - text_at;
            if length > MAX_PROPERTIES_BYTES {
                return None;
            }
            encoded[text_at - 2..text_at].copy_from_slice(&(length as u16).to_be_bytes());
            let size = i32::try_from(ELEMENT_FIXED_BYTES + body.len() + length).ok()?;
            encoded[start..start + 4].copy_from_slice(&size.to_be_bytes());
        }
        Some((encoded, names))
    }
}

/// Encode rows as the body of a batch.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn encode_rows<'py>(
    py: Python<'py>,
    ids: Raw,
    numbers: Raw,
    bodies: RawTexts,
    tags: Option<RawTexts>,
    keys: Option<RawTexts>,
    properties: Option<(Raw, RawTexts, RawTexts)>,
    flags: Option<Raw>,
    row_ids: Option<(Raw, Raw)>,
) -> Option<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)> {
    let rows = Rows {
        ids: &ids,
        bodies: Given::new(&bodies),
        tags: tags.as_ref().map(Given::new),
        keys: keys.as_ref().map(Given::new),
        properties: properties
            .as_ref()
            .map(|(offsets, names, values)| (&offsets[..], Given::new(names), Given::new(values))),
        flags: flags.as_deref(),
        row_ids: row_ids.as_ref().map(|(name, prefix)| (&name[..], &prefix[..])),
        numbers: &numbers,
    };
    let (body, names) = detached(py, bodies.2.len(), || rows.encode())?;
    Some((PyBytes::new(py, &body), names.iter().map(|name| PyBytes::new(py, name)).collect()))
}
