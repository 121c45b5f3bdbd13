//! Errors as Python has them: `ConnectionRefusedError`, `TimeoutError` and so on, by the kind of
//! the I/O error.

use pyo3::PyErr;
use std::io;

/// An error of the engine.
pub(crate) fn raise(error: impl Into<io::Error>) -> PyErr {
    let error = error.into();
    // As Python's own calls report a wrong argument.
    if error.kind() == io::ErrorKind::InvalidInput {
        return pyo3::exceptions::PyValueError::new_err(error.to_string());
    }
    error.into()
}
