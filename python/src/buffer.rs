//! Bytes of Python objects.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// The bytes of an object with the buffer protocol, whatever its items are.
///
/// # Errors
/// `TypeError` for an object without it, or whose bytes are not contiguous.
fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    PyBuffer::get(&PyMemoryView::from(object)?.call_method1("cast", ("B",))?)
}

/// A copy of an object's bytes.
///
/// # Errors
/// `TypeError`.
pub(crate) fn copy(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    bytes_of(object)?.to_vec(object.py())
}

/// How many bytes an object has that is written to.
///
/// # Errors
/// `TypeError`; `BufferError` for one that is read-only.
pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let buffer = bytes_of(object)?;
    if buffer.readonly() {
        return Err(pyo3::exceptions::PyBufferError::new_err("the object is read-only"));
    }
    Ok(buffer.len_bytes())
}

/// Writes to the front of an object.
///
/// # Errors
/// `TypeError`; `BufferError` for an object that is read-only or too short.
pub(crate) fn fill(object: &Bound<'_, PyAny>, bytes: &[u8]) -> PyResult<()> {
    let buffer = bytes_of(object)?;
    if buffer.len_bytes() == bytes.len() {
        return buffer.copy_from_slice(object.py(), bytes);
    }
    if buffer.len_bytes() < bytes.len() {
        let why =
            format!("the object has {} bytes, and {} are to be written", buffer.len_bytes(), bytes.len());
        return Err(pyo3::exceptions::PyBufferError::new_err(why));
    }
    let all = PyMemoryView::from(object)?.call_method1("cast", ("B",))?;
    let front = all.get_item(pyo3::types::PySlice::new(object.py(), 0, bytes.len() as isize, 1))?;
    PyBuffer::get(&front)?.copy_from_slice(object.py(), bytes)
}
