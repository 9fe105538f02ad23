//! Records of messages: the native form of `rocketpy_broker/store/log/batch_records.py`, of `has_property` in
//! `rocketpy/protocol/message/batch.py` and of `encode_record` in `rocketpy/protocol/message/record.py`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};

use crate::record::{FIXED_BYTES, MAGIC, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, body_crc, i32_at};
use crate::{Fitting, detached};

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
    let mut is_end = [false; 256];
    for byte in names.iter().filter_map(|name| name.last()) {
        is_end[usize::from(*byte)] = true;
    }
    let has_any = |text: &[u8]| {
        let ends = text.windows(2).enumerate();
        ends.filter(|(_, pair)| pair[1] == 1 && is_end[usize::from(pair[0])])
            .any(|(at, _)| names.iter().any(|name| text[..=at].ends_with(name)))
    };
    Ok(elements(data).map(|all| all.iter().any(|element| has_any(element.properties))))
}

/// The fields of a record that all messages of a batch share.
struct Shared<'a> {
    topic: &'a [u8],
    queue_id: i32,
    sys_flag: i32,
    born_timestamp: i64,
    born_host: &'a [u8],
    store_timestamp: i64,
    store_host: &'a [u8],
    reconsume_times: i32,
}

impl<'a> Shared<'a> {
    /// Returns `None` for a number that does not fit, a topic that is too long, or a host of another length
    /// than the system flag says.
    #[allow(clippy::too_many_arguments)]
    fn new(
        topic: &'a [u8],
        queue_id: Fitting<i32>,
        sys_flag: Fitting<i32>,
        born_timestamp: Fitting<i64>,
        born_host: &'a [u8],
        store_timestamp: Fitting<i64>,
        store_host: &'a [u8],
        reconsume_times: Fitting<i32>,
    ) -> Option<Self> {
        let sys_flag = sys_flag.0?;
        let host_bytes = |bit| if sys_flag & bit == 0 { 8 } else { 20 };
        let fits = topic.len() <= MAX_TOPIC_BYTES
            && born_host.len() == host_bytes(0x10)
            && store_host.len() == host_bytes(0x20);
        fits.then_some(Shared {
            topic,
            queue_id: queue_id.0?,
            sys_flag,
            born_timestamp: born_timestamp.0?,
            born_host,
            store_timestamp: store_timestamp.0?,
            store_host,
            reconsume_times: reconsume_times.0?,
        })
    }

    /// Size of a record with an empty body and no properties.
    fn fixed_bytes(&self) -> usize {
        FIXED_BYTES - 16 + self.topic.len() + self.born_host.len() + self.store_host.len()
    }

    /// Appends the record of a message; `None` if its properties are too long, or the record is.
    fn write(
        &self,
        records: &mut Vec<u8>,
        message: &Element,
        queue_offset: i64,
        position: i64,
        prepared_transaction_offset: i64,
    ) -> Option<()> {
        let Element { flag, body, properties } = message;
        if properties.len() > MAX_PROPERTIES_BYTES {
            return None;
        }
        let size = i32::try_from(self.fixed_bytes() + body.len() + properties.len()).ok()?;
        records.extend_from_slice(&size.to_be_bytes());
        records.extend_from_slice(&MAGIC.to_be_bytes());
        records.extend_from_slice(&body_crc(body).to_be_bytes());
        records.extend_from_slice(&self.queue_id.to_be_bytes());
        records.extend_from_slice(flag);
        records.extend_from_slice(&queue_offset.to_be_bytes());
        records.extend_from_slice(&position.to_be_bytes());
        records.extend_from_slice(&self.sys_flag.to_be_bytes());
        records.extend_from_slice(&self.born_timestamp.to_be_bytes());
        records.extend_from_slice(self.born_host);
        records.extend_from_slice(&self.store_timestamp.to_be_bytes());
        records.extend_from_slice(self.store_host);
        records.extend_from_slice(&self.reconsume_times.to_be_bytes());
        records.extend_from_slice(&prepared_transaction_offset.to_be_bytes());
        records.extend_from_slice(&(body.len() as i32).to_be_bytes());
        records.extend_from_slice(body);
        records.push(self.topic.len() as u8);
        records.extend_from_slice(self.topic);
        records.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        records.extend_from_slice(properties);
        Some(())
    }
}

/// Parameters: see the Python form.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn encode_record<'py>(
    py: Python<'py>,
    topic: &[u8],
    queue_id: Fitting<i32>,
    flag: Fitting<i32>,
    queue_offset: Fitting<i64>,
    physical_offset: Fitting<i64>,
    sys_flag: Fitting<i32>,
    born_timestamp: Fitting<i64>,
    born_host: &[u8],
    store_timestamp: Fitting<i64>,
    store_host: &[u8],
    reconsume_times: Fitting<i32>,
    prepared_transaction_offset: Fitting<i64>,
    body: &[u8],
    properties: &[u8],
) -> Option<Bound<'py, PyBytes>> {
    let shared = Shared::new(
        topic,
        queue_id,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
    )?;
    let message = Element { flag: &flag.0?.to_be_bytes(), body, properties };
    let mut record = Vec::with_capacity(shared.fixed_bytes() + body.len() + properties.len());
    shared.write(
        &mut record,
        &message,
        queue_offset.0?,
        physical_offset.0?,
        prepared_transaction_offset.0?,
    )?;
    Some(PyBytes::new(py, &record))
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
    let size_max = size_max.0?;
    let shared = Shared::new(
        topic,
        queue_id,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
    )?;
    let (queue_offset, position) = (queue_offset.0?, position.0?);
    let encode = || {
        let elements = elements(data)?;
        let mut records = Vec::with_capacity(data.len() + elements.len() * shared.fixed_bytes());
        let mut positions = Vec::with_capacity(elements.len());
        for (element, number) in elements.iter().zip(queue_offset..) {
            let at = position.checked_add(records.len() as i64)?;
            if element.properties.contains(&0) {
                return None;
            }
            positions.push(at);
            shared.write(&mut records, element, number, at, 0)?;
        }
        (records.len() <= size_max).then_some((records, positions))
    };
    let (records, positions) = detached(py, data.len(), encode)?;
    Some((PyBytes::new(py, &records), positions))
}
