//! Access to the bytes of Python objects.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// Returns the bytes of an object with the buffer protocol, whose items may have any type.
///
/// # Errors
/// `TypeError` if the object does not support the protocol, or its bytes are not contiguous.
fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    PyBuffer::get(&PyMemoryView::from(object)?.call_method1("cast", ("B",))?)
}

/// Returns a copy of an object's bytes.
///
/// # Errors
/// The errors are those of [`bytes_of`].
pub(crate) fn copy(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    bytes_of(object)?.to_vec(object.py())
}

/// Maximum length of a Read in bytes, which has 32 bits (RFC 5040 section 4.4).
const LONGEST_READ: usize = u32::MAX as usize;

/// Allocates memory for a Read of `length` bytes. The peer may have chosen the length, so an
/// allocation that fails must not end the process.
///
/// # Errors
/// `ValueError` if the length exceeds that of a Read, `MemoryError` if there is not enough memory.
pub(crate) fn for_read(length: usize) -> PyResult<Vec<u8>> {
    if length > LONGEST_READ {
        let why = format!("a read of {length} bytes; at most {LONGEST_READ}: read a slice of it");
        return Err(pyo3::exceptions::PyValueError::new_err(why));
    }
    let no_room =
        || pyo3::exceptions::PyMemoryError::new_err(format!("no memory for {length} bytes"));
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| no_room())?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Returns the length in bytes of an object that will be written.
///
/// # Errors
/// `BufferError` if the object is read-only, and the errors of [`bytes_of`].
pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let buffer = bytes_of(object)?;
    if buffer.readonly() {
        return Err(pyo3::exceptions::PyBufferError::new_err("the object is read-only"));
    }
    Ok(buffer.len_bytes())
}

/// Copies bytes to the front of an object.
///
/// # Errors
/// `BufferError` if the object is read-only or too short, and the errors of [`bytes_of`].
pub(crate) fn fill(object: &Bound<'_, PyAny>, bytes: &[u8]) -> PyResult<()> {
    let buffer = bytes_of(object)?;
    if buffer.len_bytes() == bytes.len() {
        return buffer.copy_from_slice(object.py(), bytes);
    }
    if buffer.len_bytes() < bytes.len() {
        let why = format!(
            "the object has {} bytes, and {} are to be written",
            buffer.len_bytes(),
            bytes.len()
        );
        return Err(pyo3::exceptions::PyBufferError::new_err(why));
    }
    let all = PyMemoryView::from(object)?.call_method1("cast", ("B",))?;
    let front = all.get_item(pyo3::types::PySlice::new(object.py(), 0, bytes.len() as isize, 1))?;
    PyBuffer::get(&front)?.copy_from_slice(object.py(), bytes)
}
