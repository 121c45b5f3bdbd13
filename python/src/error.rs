//! Conversion of errors to Python exceptions, such as `ConnectionRefusedError` and `TimeoutError`,
//! according to the kind of the I/O error.

use pyo3::PyErr;
use std::io;

/// Converts an error of the engine to an exception.
pub(crate) fn raise(error: impl Into<io::Error>) -> PyErr {
    let error = error.into();
    // Python's own functions report invalid arguments as `ValueError`.
    if error.kind() == io::ErrorKind::InvalidInput {
        return pyo3::exceptions::PyValueError::new_err(error.to_string());
    }
    error.into()
}
