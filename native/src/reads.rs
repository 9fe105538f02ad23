//! Reads of consume queues: the native form of `rocketpy_broker/store/queue/unit_scan.py`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashSet;

use crate::record::{FIXED_BYTES, MAGIC, i32_at, i64_at};

const UNIT_BYTES: usize = 20;
const BLANK_SIZE: i32 = 0x7FFF_FFFF;
const RANGE_BYTES_MAX: i64 = 1 << 20;
const GAP_BYTES_MAX: i64 = 16 << 10;
/// Physical offset and size of the record of a unit.
fn place(unit: &[u8]) -> Option<(i64, i32)> {
    Some((i64_at(unit, 0)?, i32_at(unit, 8)?))
}

/// Leaves filters by properties to the Python form.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn select_units(
    units: &[u8],
    tag_codes: Option<&Bound<'_, PyAny>>,
    log_begin: i64,
    log_end: i64,
    file_bytes: i64,
    memory_begin: i64,
    memory_limits: (i64, i64),
    disk_limits: (i64, i64),
    accepts: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<(Vec<usize>, Vec<(i64, i64, usize)>, usize, i64, bool)>> {
    if accepts.is_some() || units.len() % UNIT_BYTES != 0 || file_bytes <= 0 || log_begin < 0 {
        return Ok(None);
    }
    let codes: Option<HashSet<i64>> = match tag_codes {
        None => None,
        Some(codes) => match codes.extract() {
            Ok(codes) => Some(codes),
            Err(_) => return Ok(None), // a code that is no 64-bit number
        },
    };
    let mut selected = Vec::new();
    let mut ranges: Vec<(i64, i64, usize)> = Vec::new();
    let (mut examined, mut last, mut total, mut has_skipped) = (0, 0, 0_i64, false);
    // The part of the log in the file of the last record, and whether the last range may grow.
    let (mut low, mut high, mut continues) = (0, 0, false);
    for unit in units.chunks_exact(UNIT_BYTES) {
        let Some((physical, size)) = place(unit) else { return Ok(None) };
        last = physical;
        if !selected.is_empty() {
            let (count_max, bytes_max) = if physical >= memory_begin { memory_limits } else { disk_limits };
            if selected.len() as i64 >= count_max || total + i64::from(size) > bytes_max {
                break;
            }
        }
        let index = examined;
        if codes.as_ref().is_some_and(|codes| i64_at(unit, 12).is_none_or(|code| !codes.contains(&code))) {
            examined += 1;
            continue;
        }
        let end = physical.saturating_add(i64::from(size));
        let is_in = |low, high| low <= physical && end <= high && size >= FIXED_BYTES as i32;
        if !is_in(low, high) {
            let file_begin = physical.saturating_sub(physical.rem_euclid(file_bytes));
            (low, high) = (file_begin.max(log_begin), file_begin.saturating_add(file_bytes).min(log_end));
            continues = false;
            if !is_in(low, high) {
                (low, high) = (0, 0);
                if physical >= log_begin && size != BLANK_SIZE {
                    break;
                }
                has_skipped = true;
                examined += 1;
                continue;
            }
        }
        match ranges.last_mut() {
            Some((begin, before, count))
                if continues
                    && (0..=GAP_BYTES_MAX).contains(&(physical - *before))
                    && end - *begin <= RANGE_BYTES_MAX =>
            {
                *before = end;
                *count += 1;
            }
            _ => ranges.push((physical, end, 1)),
        }
        continues = true;
        total += i64::from(size);
        selected.push(index);
        examined += 1;
    }
    Ok(Some((selected, ranges, examined, last, has_skipped)))
}

/// Leaves indexes after the last unit to the Python form.
#[pyfunction]
pub fn take_records<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    begin: i64,
    units: &[u8],
    selected: Vec<usize>,
    queue_id: i64,
    first_offset: i64,
) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
    if units.len() % UNIT_BYTES != 0 {
        return Ok(None);
    }
    let log = data.as_bytes();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut count = 0;
    for index in &selected {
        if *index >= units.len() / UNIT_BYTES {
            return Ok(None);
        }
        let Some((physical, size)) = place(&units[index * UNIT_BYTES..]) else { return Ok(None) };
        let Some(at) = physical.checked_sub(begin).and_then(|at| usize::try_from(at).ok()) else { break };
        if size < FIXED_BYTES as i32 || at.checked_add(size as usize).is_none_or(|end| end > log.len()) {
            break;
        }
        let record = &log[at..at + size as usize];
        let is_of_unit = i32_at(record, 0) == Some(size)
            && i32_at(record, 4) == Some(MAGIC as i32)
            && i32_at(record, 12).map(i64::from) == Some(queue_id)
            && i64_at(record, 20) == first_offset.checked_add(*index as i64)
            && i64_at(record, 28) == Some(physical);
        if !is_of_unit {
            break;
        }
        match runs.last_mut() {
            Some((_, end)) if *end == at => *end += size as usize,
            _ => runs.push((at, at + size as usize)),
        }
        count += 1;
    }
    if runs == [(0, log.len())] {
        return Ok(Some((data.clone(), count)));
    }
    let bytes = runs.iter().map(|(begin, end)| end - begin).sum();
    let records = PyBytes::new_with(py, bytes, |mut rest| {
        for (begin, end) in &runs {
            let (record, after) = rest.split_at_mut(end - begin);
            record.copy_from_slice(&log[*begin..*end]);
            rest = after;
        }
        Ok(())
    })?;
    Ok(Some((records, count)))
}
