//! Classes with blocking calls. A call waits without the interpreter's lock, so other threads of
//! the program run, and Ctrl-C ends the wait.

use crate::buffer;
use crate::connection::{Address, Port, address, resolve, settings};
use crate::environment;
use crate::error::raise;
use crate::memory::{Memory, Remote};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uiw::{DeviceConfig, Message, Pd};

/// Device, and the protection domain of all objects that are created with it.
#[derive(Clone)]
struct DeviceDomain {
    device: uiw::Device,
    pd: Pd,
}

/// Interval at which a wait checks for signals such as Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(100);

/// Drives the device until the future is complete.
///
/// # Errors
/// `TimeoutError` after `timeout` seconds, or an exception of a signal handler.
fn wait<F: Future + Send>(
    py: Python<'_>,
    domain: &DeviceDomain,
    timeout: Option<f64>,
    future: F,
) -> PyResult<F::Output>
where
    F::Output: Send,
{
    let mut future = pin!(future);
    let limit = timeout.map(Duration::try_from_secs_f64).transpose();
    let limit = limit
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(format!("timeout: {error}")))?;
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = until
            .map_or(SIGNALS, |until| until.saturating_duration_since(Instant::now()).min(SIGNALS));
        if let Some(output) = py.detach(|| domain.device.block_on_for(left, future.as_mut())) {
            return Ok(output);
        }
        py.check_signals()?;
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(PyTimeoutError::new_err("timed out"));
        }
    }
}

/// Creates connections and memory. Objects of the same device can be used together.
///
/// The environment variables of uiw apply, for instance UIW_TLS, UIW_PCAP, UIW_COUNTERS and
/// UIW_LOG.
///
/// Raises ValueError if a variable has an invalid value or a file for TLS is invalid, and OSError
/// if the system refuses to open the device.
#[pyclass(frozen, module = "uiw")]
pub(crate) struct Device(DeviceDomain);

#[pymethods]
impl Device {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        py.detach(|| {
            let device = environment::open(DeviceConfig::default().shards(environment::shards()?))?;
            let pd = device.alloc_pd().map_err(raise)?;
            Ok(Self(DeviceDomain { device, pd }))
        })
    }

    /// Connects to a listener at (host, port). The listener can read `private_data` before it
    /// accepts.
    ///
    /// Raises ConnectionRefusedError if no program listens there or the peer rejects the
    /// connection, TimeoutError if the peer does not answer within 10 seconds or `timeout`,
    /// ValueError for invalid arguments, otherwise OSError.
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
        let connected =
            wait(py, &self.0, timeout, uiw::Connection::connect(&self.0.pd, peer, &settings))?;
        Ok(Connection::new(&self.0, connected.map_err(raise)?))
    }

    /// Listens at (host, port). Port 0 selects a free port.
    ///
    /// Raises OSError if the address is not available, ValueError for invalid arguments.
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
        let inner =
            py.detach(|| uiw::Listener::bind(&self.0.pd, local, &settings)).map_err(raise)?;
        Ok(Listener { domain: self.0.clone(), port: Port::new(inner) })
    }

    /// Allocates zeroed memory, and gives these rights to peers.
    ///
    /// Raises OSError if there is not enough memory.
    #[pyo3(signature = (size, *, read=false, write=false, atomic=false))]
    fn memory(&self, size: usize, read: bool, write: bool, atomic: bool) -> PyResult<Memory> {
        Memory::new(&self.0.pd, size, read, write, atomic)
    }
}

/// Listening port. Peers are answered while `accept` waits.
#[pyclass(frozen, module = "uiw")]
pub(crate) struct Listener {
    domain: DeviceDomain,
    port: Port,
}

#[pymethods]
impl Listener {
    /// Host and port of the listener.
    #[getter]
    fn address(&self) -> Address {
        self.port.address()
    }

    /// Waits for the next peer that connects. Peers whose connection fails are skipped.
    ///
    /// Raises TimeoutError after `timeout` seconds, OSError if the listener is closed before or
    /// during the call.
    #[pyo3(signature = (*, timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Connection> {
        let accepted = wait(py, &self.domain, timeout, self.port.accept())?;
        Ok(Connection::new(&self.domain, accepted?))
    }

    /// Stops listening. Waiting calls of `accept` raise OSError. Accepted connections continue.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.port.close());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}

/// Connection to a peer.
#[pyclass(frozen, module = "uiw")]
pub(crate) struct Connection {
    domain: DeviceDomain,
    inner: uiw::Connection,
    /// Messages that were too long for the target of `recv_into`. The next calls return them.
    kept: Mutex<VecDeque<Message>>,
}

impl Connection {
    fn new(domain: &DeviceDomain, inner: uiw::Connection) -> Self {
        Self { domain: domain.clone(), inner, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Message>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<F: Future + Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        future: F,
    ) -> PyResult<F::Output>
    where
        F::Output: Send,
    {
        wait(py, &self.domain, timeout, future)
    }

    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Message>> {
        let kept = self.kept().pop_front();
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

    /// Private data of the peer.
    #[getter]
    fn private_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.info().private_data)
    }

    /// Sends the bytes of `data` as one message. The message may still arrive after a time-out.
    ///
    /// Raises TimeoutError after `timeout` seconds, BrokenPipeError after the connection was
    /// closed, otherwise OSError.
    #[pyo3(signature = (data, *, timeout=None))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let memory = self.domain.pd.register(buffer::copy(data)?).map_err(raise)?;
        self.wait(py, timeout, self.inner.send(memory))?.map(drop).map_err(raise)
    }

    /// Waits for the next message. Returns None after the connection was closed in order, or the
    /// peer's process has exited.
    ///
    /// Raises TimeoutError after `timeout` seconds, ConnectionResetError if the connection was
    /// lost, ConnectionAbortedError if one end violated a rule or aborted, otherwise OSError.
    #[pyo3(signature = (*, timeout=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.next(py, timeout)?.map(|message| PyBytes::new(py, &message)))
    }

    /// Waits for the next message and copies it into `target`. Returns its length in bytes, or None
    /// after the connection was closed in order.
    ///
    /// Raises BufferError if `target` is read-only, or too short; then the next call returns the
    /// message. Otherwise raises the exceptions of `recv`.
    #[pyo3(signature = (target, *, timeout=None))]
    fn recv_into(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Option<usize>> {
        buffer::writable(target)?;
        // `fill` may run Python code, and with it other threads, so the list is not locked then.
        let kept = self.kept().pop_front();
        let message = match kept {
            Some(message) => message,
            None => match self.next(py, timeout)? {
                Some(message) => message,
                None => return Ok(None),
            },
        };
        if let Err(error) = buffer::fill(target, &message) {
            self.kept().push_front(message);
            return Err(error);
        }
        Ok(Some(message.len()))
    }

    /// Writes the bytes of `data` to the peer's memory. The peer's program is not notified.
    ///
    /// Raises ValueError if `data` is longer than `remote`. Otherwise raises the exceptions of
    /// `send`.
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

    /// Reads the peer's memory.
    ///
    /// Raises ValueError for more than 4 GiB, MemoryError if there is not enough memory, OSError if
    /// the peer has not given this right. Otherwise raises the exceptions of `send`.
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

    /// Fills `target` with bytes of the peer's memory.
    ///
    /// Raises BufferError if `target` is read-only. Otherwise raises the exceptions of `read`.
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

    /// Atomically adds to the 8-byte integer in the peer's memory, and returns the previous value.
    ///
    /// Raises the exceptions of `read`.
    #[pyo3(signature = (remote, add, *, timeout=None))]
    fn fetch_add(
        &self,
        py: Python<'_>,
        remote: &Remote,
        add: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.wait(py, timeout, self.inner.fetch_add(remote.0, add))?.map_err(raise)
    }

    /// Atomically replaces the 8-byte integer in the peer's memory if it equals `compare`, and
    /// returns the previous value.
    ///
    /// Raises the exceptions of `read`.
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

    /// Ends the connection immediately, even if the peer does not respond. Waiting calls of other
    /// threads raise ConnectionAbortedError.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, None, self.inner.abort()).map(drop)
    }

    /// Closes the connection in order: messages that were sent before still arrive. Does nothing if
    /// the connection has already ended.
    ///
    /// Raises TimeoutError after `timeout` seconds.
    #[pyo3(signature = (*, timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        // This fails if the connection has already ended, for instance because the peer has closed
        // it.
        self.wait(py, timeout, self.inner.disconnect()).map(drop)
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
    fn fetch(
        &self,
        py: Python<'_>,
        remote: uiw::RemoteMr,
        timeout: Option<f64>,
    ) -> PyResult<Vec<u8>> {
        let memory = self.domain.pd.register(buffer::for_read(remote.len)?).map_err(raise)?;
        let memory = self.wait(py, timeout, self.inner.read(memory, remote))?.map_err(raise)?;
        Ok(memory.into_inner())
    }
}
