//! The classes whose calls wait. They wait without the interpreter's lock, so other threads of the program run, and Ctrl-C ends a wait.

use crate::buffer;
use crate::connection::{Address, address, resolve, settings};
use crate::error::raise;
use crate::memory::{Memory, Remote};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uiw::{Message, Pd};

/// A device, and the protection domain of all that is made with it.
#[derive(Clone)]
struct Domain {
    device: uiw::Device,
    pd: Pd,
}

/// The longest wait that Ctrl-C does not end.
const SIGNALS: Duration = Duration::from_millis(100);

/// Drives the device until the future is done.
///
/// # Errors
/// `TimeoutError` after `timeout` seconds; what a signal's handler raises.
fn wait<F: Future + Send>(
    py: Python<'_>,
    domain: &Domain,
    timeout: Option<f64>,
    future: F,
) -> PyResult<F::Output>
where
    F::Output: Send,
{
    let mut future = pin!(future);
    let limit = timeout.map(Duration::try_from_secs_f64).transpose();
    let limit =
        limit.map_err(|error| pyo3::exceptions::PyValueError::new_err(format!("timeout: {error}")))?;
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left =
            until.map_or(SIGNALS, |until| until.saturating_duration_since(Instant::now()).min(SIGNALS));
        if let Some(output) = py.detach(|| domain.device.block_on_for(left, future.as_mut())) {
            return Ok(output);
        }
        py.check_signals()?;
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(PyTimeoutError::new_err("timed out"));
        }
    }
}

/// Makes connections and memory.
#[pyclass(frozen)]
pub(crate) struct Device(Domain);

#[pymethods]
impl Device {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let open = || {
            let device = uiw::Device::open()?;
            let pd = device.alloc_pd()?;
            Ok::<_, uiw::Error>(Self(Domain { device, pd }))
        };
        py.detach(open).map_err(raise)
    }

    /// Connects to a listener.
    #[pyo3(signature = (address, *, timeout=None, private_data=None, max_message=None))]
    fn connect(
        &self,
        py: Python<'_>,
        address: Address,
        timeout: Option<f64>,
        private_data: Option<&Bound<'_, PyAny>>,
        max_message: Option<u32>,
    ) -> PyResult<Connection> {
        let settings = settings(private_data, max_message)?;
        let peer = resolve(py, address)?;
        let connected = wait(py, &self.0, timeout, uiw::Connection::connect(&self.0.pd, peer, &settings))?;
        Ok(Connection::new(&self.0, connected.map_err(raise)?))
    }

    /// Listens; port 0 takes a free one.
    #[pyo3(signature = (address, *, private_data=None, max_message=None))]
    fn listen(
        &self,
        py: Python<'_>,
        address: Address,
        private_data: Option<&Bound<'_, PyAny>>,
        max_message: Option<u32>,
    ) -> PyResult<Listener> {
        let settings = settings(private_data, max_message)?;
        let local = resolve(py, address)?;
        let inner = py.detach(|| uiw::Listener::bind(&self.0.pd, local, &settings)).map_err(raise)?;
        Ok(Listener { domain: self.0.clone(), inner })
    }

    /// Zeroed memory that peers reach.
    #[pyo3(signature = (size, *, read=false, write=false, atomic=false))]
    fn memory(&self, size: usize, read: bool, write: bool, atomic: bool) -> PyResult<Memory> {
        Memory::new(&self.0.pd, size, read, write, atomic)
    }
}

/// A port.
#[pyclass(frozen)]
pub(crate) struct Listener {
    domain: Domain,
    inner: uiw::Listener,
}

#[pymethods]
impl Listener {
    /// Host and port.
    #[getter]
    fn address(&self) -> Address {
        address(self.inner.local_addr())
    }

    /// The next peer that connects.
    #[pyo3(signature = (*, timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Connection> {
        let accepted = wait(py, &self.domain, timeout, self.inner.accept())?;
        Ok(Connection::new(&self.domain, accepted.map_err(raise)?))
    }
}

/// A connection.
#[pyclass(frozen)]
pub(crate) struct Connection {
    domain: Domain,
    inner: uiw::Connection,
    /// A message that found no room in the object of `recv_into`: the next call returns it.
    kept: Mutex<Option<Message>>,
}

impl Connection {
    fn new(domain: &Domain, inner: uiw::Connection) -> Self {
        Self { domain: domain.clone(), inner, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Message>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<F: Future + Send>(&self, py: Python<'_>, timeout: Option<f64>, future: F) -> PyResult<F::Output>
    where
        F::Output: Send,
    {
        wait(py, &self.domain, timeout, future)
    }

    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Message>> {
        let kept = self.kept().take();
        match kept {
            Some(message) => Ok(Some(message)),
            None => self.wait(py, timeout, self.inner.recv())?.map_err(raise),
        }
    }
}

#[pymethods]
impl Connection {
    /// Host and port of the peer.
    #[getter]
    fn peer(&self) -> Address {
        address(self.inner.info().peer)
    }

    /// The peer's private data.
    #[getter]
    fn private_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.info().private_data)
    }

    /// Sends the bytes of `data` as one message. After a time-out it may still arrive.
    #[pyo3(signature = (data, *, timeout=None))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let memory = self.domain.pd.register(buffer::copy(data)?).map_err(raise)?;
        self.wait(py, timeout, self.inner.send(memory))?.map(drop).map_err(raise)
    }

    /// The next message; `None` when the connection was closed in order.
    #[pyo3(signature = (*, timeout=None))]
    fn recv<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.next(py, timeout)?.map(|message| PyBytes::new(py, &message)))
    }

    /// The next message, into `target`: how many bytes it has, or `None` when the connection was closed in order. A message that is longer
    /// than `target` is left for the next call.
    #[pyo3(signature = (target, *, timeout=None))]
    fn recv_into(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Option<usize>> {
        buffer::writable(target)?;
        let Some(message) = self.next(py, timeout)? else { return Ok(None) };
        if let Err(error) = buffer::fill(target, &message) {
            *self.kept() = Some(message);
            return Err(error);
        }
        Ok(Some(message.len()))
    }

    /// Writes the bytes of `data` to a peer's memory. The peer's program does not learn of it.
    #[pyo3(signature = (data, remote, *, timeout=None))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        remote: &Remote,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let memory = self.domain.pd.register(buffer::copy(data)?).map_err(raise)?;
        self.wait(py, timeout, self.inner.write(memory, remote.0))?.map(drop).map_err(raise)
    }

    /// Reads a peer's memory.
    #[pyo3(signature = (remote, *, timeout=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        remote: &Remote,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.fetch(py, remote.0, timeout)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Reads as many bytes of a peer's memory as `target` has.
    #[pyo3(signature = (target, remote, *, timeout=None))]
    fn read_into(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        remote: &Remote,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let bytes = buffer::writable(target)?;
        let part = remote.0.slice(0..bytes).map_err(raise)?;
        buffer::fill(target, &self.fetch(py, part, timeout)?)
    }

    /// Adds to eight bytes of a peer's memory, atomically; returns what they were.
    #[pyo3(signature = (remote, add, *, timeout=None))]
    fn fetch_add(&self, py: Python<'_>, remote: &Remote, add: u64, timeout: Option<f64>) -> PyResult<u64> {
        self.wait(py, timeout, self.inner.fetch_add(remote.0, add))?.map_err(raise)
    }

    /// Replaces eight bytes of a peer's memory if they are `compare`, atomically; returns what they were.
    #[pyo3(signature = (remote, compare, swap, *, timeout=None))]
    fn compare_swap(
        &self,
        py: Python<'_>,
        remote: &Remote,
        compare: u64,
        swap: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.wait(py, timeout, self.inner.compare_swap(remote.0, compare, swap))?.map_err(raise)
    }

    /// Closes in order: what was sent before arrives.
    #[pyo3(signature = (*, timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        match self.wait(py, timeout, self.inner.disconnect())? {
            Err(error) if !matches!(error.kind(), uiw::ErrorKind::NotConnected) => Err(raise(error)),
            // Perhaps the peer was first.
            _ => Ok(()),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py, None)
    }
}

impl Connection {
    fn fetch(&self, py: Python<'_>, remote: uiw::RemoteMr, timeout: Option<f64>) -> PyResult<Vec<u8>> {
        let memory = self.domain.pd.register(buffer::for_read(remote.len)?).map_err(raise)?;
        let memory = self.wait(py, timeout, self.inner.read(memory, remote))?.map_err(raise)?;
        Ok(memory.into_inner())
    }
}
