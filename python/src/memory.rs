//! Memory that peers can access, and references to the memory of peers.

use crate::buffer;
use crate::error::raise;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uiw::{Access, Pd, RemoteMr, SharedMr};

/// Memory that peers can read, write or change by atomics.
#[pyclass(frozen, module = "uiw")]
pub(crate) struct Memory(SharedMr);

impl Memory {
    pub(crate) fn new(
        pd: &Pd,
        size: usize,
        read: bool,
        write: bool,
        atomic: bool,
    ) -> PyResult<Self> {
        let rights = [
            (read, Access::REMOTE_READ),
            (write, Access::REMOTE_WRITE),
            (atomic, Access::REMOTE_ATOMIC),
        ];
        let granted = rights.into_iter().filter(|(is_granted, _)| *is_granted);
        let access = granted.fold(Access::empty(), |all, (_, right)| all | right);
        pd.share(size, access).map(Self).map_err(raise)
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Returns a copy of `length` bytes at `offset`. Without a length, returns all bytes from
    /// `offset` to the end.
    ///
    /// Raises ValueError if the range exceeds the memory.
    #[pyo3(signature = (offset=0, length=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.0.to_vec(self.range(offset, length)?).map_err(raise)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Copies `data` to the memory at `offset`.
    ///
    /// Raises ValueError if the range exceeds the memory.
    #[pyo3(signature = (data, offset=0))]
    fn write(&self, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        self.0.write(offset, &buffer::copy(data)?).map_err(raise)
    }

    /// Returns the 8-byte integer at `offset`, which peers can change by atomics.
    ///
    /// Raises ValueError if the offset is not a multiple of 8, or exceeds the memory.
    #[pyo3(signature = (offset=0))]
    fn load(&self, offset: usize) -> PyResult<u64> {
        self.0.load_u64(offset).map_err(raise)
    }

    /// Atomically adds to the 8-byte integer at `offset`, and returns the previous value.
    ///
    /// Raises the exceptions of `load`.
    #[pyo3(signature = (add, offset=0))]
    fn fetch_add(&self, add: u64, offset: usize) -> PyResult<u64> {
        self.0.update_u64(offset, |old| old.wrapping_add(add)).map_err(raise)
    }

    /// Returns the reference with which a peer can access `length` bytes at `offset`.
    ///
    /// Raises ValueError if the range exceeds the memory.
    #[pyo3(signature = (offset=0, length=None))]
    fn remote(&self, offset: usize, length: Option<usize>) -> PyResult<Remote> {
        self.0.remote(self.range(offset, length)?).map(Remote).map_err(raise)
    }

    fn __repr__(&self) -> String {
        format!("<uiw.Memory of {} bytes>", self.0.len())
    }
}

impl Memory {
    fn range(&self, offset: usize, length: Option<usize>) -> PyResult<std::ops::Range<usize>> {
        let end = match length {
            Some(length) => offset.checked_add(length),
            None => Some(self.0.len().max(offset)),
        };
        end.map(|end| offset..end)
            .ok_or_else(|| PyValueError::new_err("offset and length exceed 64 bits"))
    }
}

/// Reference to memory of a peer. It has 20 bytes, which can be sent in a message.
#[pyclass(frozen, eq, module = "uiw")]
#[derive(PartialEq)]
pub(crate) struct Remote(pub(crate) RemoteMr);

#[pymethods]
impl Remote {
    /// Decodes the 20 bytes that `bytes(remote)` returned. Raises ValueError for a different number
    /// of bytes.
    #[new]
    fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        RemoteMr::from_bytes(&buffer::copy(data)?).map(Self).map_err(raise)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    fn __len__(&self) -> usize {
        self.0.len
    }

    /// Returns a reference to a part of the memory.
    ///
    /// Raises ValueError if the range exceeds the memory.
    #[pyo3(signature = (offset=0, length=None))]
    fn slice(&self, offset: usize, length: Option<usize>) -> PyResult<Self> {
        let end = length.map_or(Some(self.0.len), |length| offset.checked_add(length));
        let end = end.ok_or_else(|| PyValueError::new_err("offset and length exceed 64 bits"))?;
        self.0.slice(offset..end).map(Self).map_err(raise)
    }

    fn __repr__(&self) -> String {
        format!("<uiw.Remote of {} bytes>", self.0.len)
    }
}
