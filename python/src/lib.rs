//! Extension module `uiw._uiw`. It uses the crate `uiw`, and `uiw-cabi-core` for the environment.
//! `python/uiw` has the rest of the Python module, and `python/uiw/__init__.pyi` its types.
//!
//! The bytes of Python objects are copied while the interpreter's lock is held, because other
//! threads of the program may change them at any time.

mod blocking;
mod buffer;
mod connection;
mod environment;
mod error;
mod memory;
mod tasks;

use pyo3::prelude::*;

/// Creates the module.
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
