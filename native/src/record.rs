//! The layout of a message record: see the table in `rocketpy/protocol/message/record.py`.

pub const MAGIC: u32 = 0xDAA3_20A7;
pub const MAX_TOPIC_BYTES: usize = 127;
pub const MAX_PROPERTIES_BYTES: usize = 32767;
/// Size of a record with IPv4 hosts, without body, topic and properties.
pub const FIXED_BYTES: usize = 91;
const V6_EXTRA_BYTES: usize = 12;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
/// Bits of the system flag: IPv6 hosts.
pub const V6: i32 = BORN_V6 | STORE_V6;

/// The checksum of a body as a record has it: the lower 31 bits of its CRC-32.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

pub fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Returns the value of a property from the text between its name and the next property, as
/// `rocketpy/protocol/message/properties.py` reads it; `None` if it is empty or malformed.
pub fn property_value(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().rposition(|byte| *byte != 1)? + 1;
    let value = &text[..end];
    (!value.contains(&1)).then_some(value)
}

/// One record in a buffer.
pub struct Record<'a> {
    pub size: usize,
    pub crc: u32,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub store_timestamp: i64,
    /// Where the body begins in the record.
    pub body_at: usize,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the record that starts at `at`; `None` if its magic number or a length is wrong, or if the data
    /// ends before it does. The CRC of its body is not checked.
    pub fn at(data: &'a [u8], at: usize) -> Option<Self> {
        let size = usize::try_from(i32_at(data, at)?).ok()?;
        if size < FIXED_BYTES || i32_at(data, at + 4)? as u32 != MAGIC {
            return None;
        }
        let record = data.get(at..at.checked_add(size)?)?;
        let sys_flag = i32_at(record, 36)?;
        let born = if sys_flag & BORN_V6 != 0 { V6_EXTRA_BYTES } else { 0 };
        let hosts = born + if sys_flag & STORE_V6 != 0 { V6_EXTRA_BYTES } else { 0 };
        let body_at = 88 + hosts;
        let topic_at = body_at.checked_add(usize::try_from(i32_at(record, 84 + hosts)?).ok()?)?;
        let topic_bytes = usize::from(*record.get(topic_at)?);
        let lengths_at = topic_at + 1 + topic_bytes;
        let length = record.get(lengths_at..lengths_at + 2)?;
        let properties = &record[lengths_at + 2..];
        let properties_bytes = usize::from(u16::from_be_bytes(length.try_into().ok()?));
        if topic_bytes > MAX_TOPIC_BYTES
            || properties_bytes > MAX_PROPERTIES_BYTES
            || properties_bytes != properties.len()
        {
            return None;
        }
        Some(Record {
            size,
            crc: i32_at(record, 8)? as u32,
            queue_id: i32_at(record, 12)?,
            queue_offset: i64_at(record, 20)?,
            physical_offset: i64_at(record, 28)?,
            sys_flag,
            store_timestamp: i64_at(record, 56 + born)?,
            body_at,
            body: &record[body_at..topic_at],
            topic: &record[topic_at + 1..lengths_at],
            properties,
        })
    }
}
