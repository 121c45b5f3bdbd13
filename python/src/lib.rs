//! The extension module `uiw._uiw`, on the crate `uiw`, and on `uiw-cabi-core` for the environment.
//! `python/uiw` has the rest of the Python module, `python/uiw/__init__.pyi` its types.
//!
//! Bytes of Python objects are copied while the interpreter's lock is held: another thread of the
//! program may change them at any time.

mod blocking;
mod buffer;
mod connection;
mod environment;
mod error;
mod memory;
mod tasks;

use pyo3::prelude::*;

/// The module.
#[pymodule]
fn _uiw(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(environment::flush_capture, module)?)?;
    module.add_class::<blocking::Device>()?;
    module.add_class::<blocking::Listener>()?;
    module.add_class::<blocking::Connection>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<memory::Remote>()?;
    module.add_class::<tasks::AsyncDevice>()?;
    module.add_class::<tasks::AsyncListener>()?;
    module.add_class::<tasks::AsyncConnection>()
}
