//! Entries of an index file: the native form of `link_entries` in `rocketpy_broker/store/index/index_file.py`.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::record::{i32_at, i64_at};

const SECONDS_MAX: i64 = 0x7FFF_FFFF;

#[pyfunction]
pub fn link_entries<'py>(
    py: Python<'py>,
    slots: PyBuffer<i32>,
    rows: &[u8],
    first: i32,
    begin_ms: i64,
) -> Option<Bound<'py, PyBytes>> {
    let slots = slots.as_mut_slice(py)?;
    if slots.is_empty() || rows.chunks_exact(20).any(|row| row[0] & 0x80 != 0) {
        return None;
    }
    let mut entries = Vec::with_capacity(rows.len());
    for (row, number) in rows.chunks_exact(20).zip(first..) {
        let hash = i32_at(row, 0)? as usize;
        let newest = slots[hash % slots.len()].replace(number);
        let previous = if 0 <= newest && newest <= number { newest } else { 0 };
        let since = i64_at(row, 12)?.saturating_sub(begin_ms);
        let seconds = if begin_ms <= 0 || since <= 0 { 0 } else { (since / 1000).min(SECONDS_MAX) };
        entries.extend_from_slice(&row[..12]);
        entries.extend_from_slice(&(seconds as i32).to_be_bytes());
        entries.extend_from_slice(&previous.to_be_bytes());
    }
    Some(PyBytes::new(py, &entries))
}
