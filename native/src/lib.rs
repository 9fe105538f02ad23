//! Native forms of pure functions of rocketpy; `rocketpy/native.py` chooses between them and the Python forms.
//!
//! Each function here has the name and the parameters of a Python function that is decorated with
//! `has_native_form`. It returns `None` for input that it does not handle: errors and rare forms. Then the
//! Python function handles that input, so errors and their texts exist in Python only. Functions do no I/O,
//! read no clock and keep no state. A panic becomes a Python exception, and is a defect.

#![forbid(unsafe_code)]

use pyo3::prelude::*;

mod arrow;
mod batch;
mod index_entries;
mod java;
mod key_search;
mod log_fields;
mod pulled;
mod reads;
mod record;
mod timers;

/// Inputs above this size are handled without the global interpreter lock.
const DETACH_BYTES: usize = 64 << 10;

/// Does work on an input of this size.
fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl Send + FnOnce() -> T) -> T {
    if bytes > DETACH_BYTES { py.detach(work) } else { work() }
}

/// A number, or `None` if the Python number does not fit.
struct Fitting<T>(Option<T>);

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for Fitting<T> {
    type Error = PyErr;

    fn extract(number: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Fitting(number.extract().ok()))
    }
}

#[pymodule]
mod rocketpy_native {
    #[pymodule_export]
    use super::arrow::{encode_rows, property_buffers, record_parts, record_starts};
    #[pymodule_export]
    use super::batch::{batch_records, encode_record, has_property};
    #[pymodule_export]
    use super::index_entries::link_entries;
    #[pymodule_export]
    use super::key_search::{index_hash, match_key};
    #[pymodule_export]
    use super::log_fields::read_log_fields;
    #[pymodule_export]
    use super::pulled::split_records;
    #[pymodule_export]
    use super::reads::{select_units, take_records};
    #[pymodule_export]
    use super::timers::{due_messages, timer_units};

    /// Changes with the name, the parameters or the result of any function; see `rocketpy/native.py`.
    #[pymodule_export]
    const INTERFACE: u32 = 1;
}
