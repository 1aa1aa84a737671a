//! `plait._plait`, the native part of the Python package. `python/plait` documents and types its functions.

#![forbid(unsafe_code)]

mod analysis;
mod arrow;
mod gateway;
mod logs;
mod policy;
mod sources;

use pyo3::prelude::*;

#[pymodule]
fn _plait(module: &Bound<'_, PyModule>) -> PyResult<()> {
    analysis::add_to(module)?;
    gateway::add_to(module)?;
    logs::add_to(module)?;
    policy::add_to(module)
}
