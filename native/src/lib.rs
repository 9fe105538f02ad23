//! Native forms of pure functions of rocketpy; `rocketpy/native.py` chooses between them and the Python forms.
//!
//! Each function here has the name and the parameters of a Python function that is decorated with
//! `has_native_form`. It returns `None` for input that it does not handle: errors and rare forms. Then the
//! Python function handles that input, so errors and their texts exist in Python only. Functions do no I/O,
//! read no clock and keep no state. A panic becomes a Python exception, and is a defect.

#![forbid(unsafe_code)]

use pyo3::prelude::*;

mod arrow;
mod hashes;
mod key_search;
mod pulled;
mod reads;

#[pymodule]
mod rocketpy_native {
    #[pymodule_export]
    use super::arrow::{property_buffers, record_parts, record_starts};
    #[pymodule_export]
    use super::hashes::key_hashes;
    #[pymodule_export]
    use super::key_search::match_key;
    #[pymodule_export]
    use super::pulled::split_records;
    #[pymodule_export]
    use super::reads::{select_units, take_records};

    /// Changes with the name, the parameters or the result of any function; see `rocketpy/native.py`.
    #[pymodule_export]
    const INTERFACE: u32 = 1;
}
