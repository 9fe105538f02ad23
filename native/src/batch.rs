//! The records of a batch: the native form of `rocketpy_broker/store/log/batch_records.py` and of
//! `has_property` in `rocketpy/protocol/message/batch.py`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};

use crate::Fitting;
use crate::record::{FIXED_BYTES, MAGIC, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, body_crc, i32_at};

/// One message of a batch.
struct Element<'a> {
    flag: &'a [u8],
    body: &'a [u8],
    properties: &'a [u8],
}

/// Returns the messages of a batch body, as `split_batch_body` does; `None` if its lengths contradict each
/// other.
fn elements(mut data: &[u8]) -> Option<Vec<Element<'_>>> {
    let mut elements = Vec::new();
    while !data.is_empty() {
        let size = usize::try_from(i32_at(data, 0)?).ok()?;
        let element = data.get(..size)?;
        let body_bytes = usize::try_from(i32_at(element, 16)?).ok()?;
        let body_end = 20usize.checked_add(body_bytes)?;
        let length = element.get(body_end..body_end.checked_add(2)?)?;
        let properties = &element[body_end + 2..];
        if usize::from(u16::from_be_bytes(length.try_into().ok()?)) != properties.len() {
            return None;
        }
        elements.push(Element { flag: &element[12..16], body: &element[20..body_end], properties });
        data = &data[size..];
    }
    Some(elements)
}

#[pyfunction]
pub fn has_property(data: &[u8], names: &Bound<'_, PyTuple>) -> PyResult<Option<bool>> {
    let names: Vec<PyBackedBytes> = names.extract()?;
    let is_end = |name: &[u8], byte: u8| name.last() == Some(&byte);
    let has_any = |text: &[u8]| {
        let separators = text.iter().enumerate().filter(|(_, byte)| **byte == 1);
        separators
            .filter(|(at, _)| *at > 0)
            .any(|(at, _)| names.iter().any(|name| is_end(name, text[at - 1]) && text[..at].ends_with(name)))
    };
    Ok(elements(data).map(|all| all.iter().any(|element| has_any(element.properties))))
}

/// Parameters: see the Python form.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn batch_records<'py>(
    py: Python<'py>,
    data: &[u8],
    topic: &[u8],
    queue_id: Fitting<i32>,
    queue_offset: Fitting<i64>,
    position: Fitting<i64>,
    sys_flag: Fitting<i32>,
    born_timestamp: Fitting<i64>,
    born_host: &[u8],
    store_timestamp: Fitting<i64>,
    store_host: &[u8],
    reconsume_times: Fitting<i32>,
    size_max: Fitting<usize>,
) -> Option<(Bound<'py, PyBytes>, Vec<i64>)> {
    let (queue_id, queue_offset, position) = (queue_id.0?, queue_offset.0?, position.0?);
    let (sys_flag, born_timestamp, store_timestamp) = (sys_flag.0?, born_timestamp.0?, store_timestamp.0?);
    let (reconsume_times, size_max) = (reconsume_times.0?, size_max.0?);
    let host_bytes = |bit| if sys_flag & bit == 0 { 8 } else { 20 };
    if topic.len() > MAX_TOPIC_BYTES
        || born_host.len() != host_bytes(0x10)
        || store_host.len() != host_bytes(0x20)
    {
        return None;
    }
    let encode = || {
        let fixed = FIXED_BYTES - 16 + topic.len() + born_host.len() + store_host.len();
        let elements = elements(data)?;
        let mut records = Vec::with_capacity(data.len() + elements.len() * fixed);
        let mut positions = Vec::with_capacity(elements.len());
        for (element, number) in elements.iter().zip(queue_offset..) {
            let Element { flag, body, properties } = element;
            if properties.len() > MAX_PROPERTIES_BYTES || properties.contains(&0) {
                return None;
            }
            let size = i32::try_from(fixed + body.len() + properties.len()).ok()?;
            let at = position.checked_add(records.len() as i64)?;
            positions.push(at);
            records.extend_from_slice(&size.to_be_bytes());
            records.extend_from_slice(&MAGIC.to_be_bytes());
            records.extend_from_slice(&body_crc(body).to_be_bytes());
            records.extend_from_slice(&queue_id.to_be_bytes());
            records.extend_from_slice(flag);
            records.extend_from_slice(&number.to_be_bytes());
            records.extend_from_slice(&at.to_be_bytes());
            records.extend_from_slice(&sys_flag.to_be_bytes());
            records.extend_from_slice(&born_timestamp.to_be_bytes());
            records.extend_from_slice(born_host);
            records.extend_from_slice(&store_timestamp.to_be_bytes());
            records.extend_from_slice(store_host);
            records.extend_from_slice(&reconsume_times.to_be_bytes());
            records.extend_from_slice(&0i64.to_be_bytes()); // prepared transaction offset
            records.extend_from_slice(&(body.len() as i32).to_be_bytes());
            records.extend_from_slice(body);
            records.push(topic.len() as u8);
            records.extend_from_slice(topic);
            records.extend_from_slice(&(properties.len() as u16).to_be_bytes());
            records.extend_from_slice(properties);
        }
        (records.len() <= size_max).then_some((records, positions))
    };
    let result = if data.len() > crate::DETACH_BYTES { py.detach(encode) } else { encode() };
    let (records, positions) = result?;
    Some((PyBytes::new(py, &records), positions))
}
