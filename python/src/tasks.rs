//! Classes for asyncio. The thread of the event loop drives the device, and each call is a future
//! in a table until it is complete.

use crate::buffer;
use crate::connection::{Address, Port, address, resolve, settings};
use crate::environment;
use crate::error::raise;
use crate::memory::{Memory, Remote};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;
use uiw::{DeviceConfig, Message, Pd, Progress};

/// Result of a call: the returned value, or the exception.
type Outcome = PyResult<TaskValue>;

/// Number of rounds after which the event loop may run other tasks.
const ROUNDS: usize = 64;

/// Completed call: its number, the returned value, and the exception.
type Done<'py> = (u64, Option<Bound<'py, PyAny>>, Option<PyErr>);

enum TaskValue {
    None,
    Number(u64),
    Bytes(Vec<u8>),
    Message(Message),
    Connection(uiw::Connection),
}

/// Call that is not complete.
struct PendingTask {
    future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    waker: Waker,
}

/// Numbers of the tasks to poll.
#[derive(Default)]
struct WokenTasks(Mutex<Vec<u64>>);

struct TaskWaker {
    number: u64,
    woken: Arc<WokenTasks>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.woken.0).push(self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct TaskTable {
    woken: Arc<WokenTasks>,
    table: Mutex<(u64, HashMap<u64, PendingTask>)>,
}

impl TaskTable {
    /// Adds a future, which the next step polls. Returns its number.
    fn start(&self, future: impl Future<Output = Outcome> + Send + 'static) -> u64 {
        let mut table = lock(&self.table);
        table.0 += 1;
        let number = table.0;
        let waker = Waker::from(Arc::new(TaskWaker { number, woken: Arc::clone(&self.woken) }));
        table.1.insert(number, PendingTask { future: Box::pin(future), waker });
        lock(&self.woken.0).push(number);
        number
    }

    /// Polls the woken tasks, and returns those that are complete.
    fn poll(&self) -> Vec<(u64, Outcome)> {
        let mut done = Vec::new();
        loop {
            let woken = std::mem::take(&mut *lock(&self.woken.0));
            if woken.is_empty() {
                return done;
            }
            for number in woken {
                // The task is removed from the table, because polling it may start another one.
                let Some(mut task) = lock(&self.table).1.remove(&number) else { continue };
                match task.future.as_mut().poll(&mut Context::from_waker(&task.waker)) {
                    Poll::Ready(outcome) => done.push((number, outcome)),
                    Poll::Pending => drop(lock(&self.table).1.insert(number, task)),
                }
            }
        }
    }
}

/// Device that an event loop drives.
#[pyclass(frozen, module = "uiw")]
pub(crate) struct AsyncDevice {
    device: uiw::Device,
    pd: Pd,
    tasks: Arc<TaskTable>,
}

#[pymethods]
impl AsyncDevice {
    #[new]
    fn new() -> PyResult<Self> {
        // The device has one shard, because one thread drives it.
        let options = DeviceConfig::default().progress(Progress::Manual).shards(1);
        let device = environment::open(options)?;
        let pd = device.alloc_pd().map_err(raise)?;
        Ok(Self { device, pd, tasks: Arc::default() })
    }

    /// Returns the descriptors that become readable when the device has work to do.
    fn fds(&self) -> Vec<i32> {
        self.device.wait_fds().iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Returns the time in seconds after which `step` must be called even if nothing is readable.
    fn deadline(&self) -> Option<f64> {
        let at = self.device.deadline()?;
        Some(at.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// Drives the device until there is no more work, or for [`ROUNDS`] rounds. Returns the completed
    /// calls (number, result, exception), and whether there may be more work.
    fn step<'py>(&self, py: Python<'py>) -> (Vec<Done<'py>>, bool) {
        let mut all = Vec::new();
        let mut has_more = true;
        for _ in 0..ROUNDS {
            let done = self.tasks.poll();
            let is_idle = done.is_empty();
            all.extend(done);
            let moved = py.detach(|| self.device.pump());
            if moved == 0 && is_idle && lock(&self.tasks.woken.0).is_empty() {
                has_more = false;
                break;
            }
        }
        let of = |(number, outcome): (u64, Outcome)| match outcome
            .and_then(|value| self.object(py, value))
        {
            Ok(object) => (number, object, None),
            Err(error) => (number, None, Some(error)),
        };
        (all.into_iter().map(of).collect(), has_more)
    }

    /// Removes a call. The operation that it has started continues.
    fn cancel(&self, number: u64) {
        let task = lock(&self.tasks.table).1.remove(&number);
        // The task is dropped without the lock of the table, because dropping it may wake another
        // task.
        drop(task);
    }

    /// Starts to connect.
    #[pyo3(signature = (address, private_data=None, max_message=None))]
    fn connect(
        &self,
        py: Python<'_>,
        address: Address,
        private_data: Option<&Bound<'_, PyAny>>,
        max_message: Option<u32>,
    ) -> PyResult<u64> {
        let settings = settings(private_data, max_message)?;
        let peer = resolve(py, address)?;
        let pd = self.pd.clone();
        Ok(self.tasks.start(async move {
            let connected = uiw::Connection::connect(&pd, peer, &settings).await;
            connected.map(TaskValue::Connection).map_err(raise)
        }))
    }

    /// Listens at (host, port).
    #[pyo3(signature = (address, private_data=None, max_message=None))]
    fn listen(
        &self,
        py: Python<'_>,
        address: Address,
        private_data: Option<&Bound<'_, PyAny>>,
        max_message: Option<u32>,
    ) -> PyResult<AsyncListener> {
        let settings = settings(private_data, max_message)?;
        let local = resolve(py, address)?;
        let listener = uiw::Listener::bind(&self.pd, local, &settings).map_err(raise)?;
        Ok(AsyncListener { port: Arc::new(Port::new(listener)), tasks: Arc::clone(&self.tasks) })
    }

    /// Allocates zeroed memory, and gives these rights to peers.
    #[pyo3(signature = (size, read, write, atomic))]
    fn memory(&self, size: usize, read: bool, write: bool, atomic: bool) -> PyResult<Memory> {
        Memory::new(&self.pd, size, read, write, atomic)
    }
}

impl AsyncDevice {
    fn object<'py>(
        &self,
        py: Python<'py>,
        value: TaskValue,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(Some(match value {
            TaskValue::None => return Ok(None),
            TaskValue::Number(number) => number.into_pyobject(py)?.into_any(),
            TaskValue::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
            TaskValue::Message(message) => PyBytes::new(py, &message).into_any(),
            TaskValue::Connection(connection) => {
                let connection = Arc::new(connection);
                Bound::new(py, AsyncConnection { connection, tasks: Arc::clone(&self.tasks) })?
                    .into_any()
            }
        }))
    }
}

/// Listening port of an `AsyncDevice`.
#[pyclass(frozen, module = "uiw")]
pub(crate) struct AsyncListener {
    port: Arc<Port>,
    tasks: Arc<TaskTable>,
}

#[pymethods]
impl AsyncListener {
    #[getter]
    fn address(&self) -> Address {
        self.port.address()
    }

    fn accept(&self) -> u64 {
        let port = Arc::clone(&self.port);
        self.tasks.start(async move { port.accept().await.map(TaskValue::Connection) })
    }

    fn close(&self) {
        self.port.close();
    }
}

/// Connection of an `AsyncDevice`.
#[pyclass(frozen, module = "uiw")]
pub(crate) struct AsyncConnection {
    connection: Arc<uiw::Connection>,
    tasks: Arc<TaskTable>,
}

impl AsyncConnection {
    /// Starts the future that `make` creates for the connection.
    fn start<F: Future<Output = Outcome> + Send + 'static>(
        &self,
        make: impl FnOnce(Arc<uiw::Connection>) -> F,
    ) -> u64 {
        self.tasks.start(make(Arc::clone(&self.connection)))
    }
}

#[pymethods]
impl AsyncConnection {
    #[getter]
    fn peer(&self) -> Address {
        address(self.connection.info().peer)
    }

    #[getter]
    fn private_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.connection.info().private_data)
    }

    fn send(&self, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let memory = self.connection.pd().register(buffer::copy(data)?).map_err(raise)?;
        let sent = self.connection.send(memory);
        Ok(self.tasks.start(async move { sent.await.map(|_| TaskValue::None).map_err(raise) }))
    }

    fn recv(&self) -> u64 {
        self.start(|connection| async move {
            let message = connection.recv().await.map_err(raise)?;
            Ok(message.map_or(TaskValue::None, TaskValue::Message))
        })
    }

    fn write(&self, data: &Bound<'_, PyAny>, remote: &Remote) -> PyResult<u64> {
        let memory = self.connection.pd().register(buffer::copy(data)?).map_err(raise)?;
        let written = self.connection.write(memory, remote.0);
        Ok(self.tasks.start(async move { written.await.map(|_| TaskValue::None).map_err(raise) }))
    }

    fn read(&self, remote: &Remote) -> PyResult<u64> {
        let memory =
            self.connection.pd().register(buffer::for_read(remote.0.len)?).map_err(raise)?;
        let read = self.connection.read(memory, remote.0);
        let bytes = async move { Ok(TaskValue::Bytes(read.await.map_err(raise)?.into_inner())) };
        Ok(self.tasks.start(bytes))
    }

    fn fetch_add(&self, remote: &Remote, add: u64) -> u64 {
        let added = self.connection.fetch_add(remote.0, add);
        self.tasks.start(async move { added.await.map(TaskValue::Number).map_err(raise) })
    }

    fn compare_swap(&self, remote: &Remote, compare: u64, swap: u64) -> u64 {
        let swapped = self.connection.compare_swap(remote.0, compare, swap);
        self.tasks.start(async move { swapped.await.map(TaskValue::Number).map_err(raise) })
    }

    fn abort(&self) -> u64 {
        self.start(|connection| async move {
            connection.abort().await;
            Ok(TaskValue::None)
        })
    }

    fn close(&self) -> u64 {
        self.start(|connection| async move {
            // This fails if the connection has already ended, for instance because the peer has
            // closed it.
            let _ = connection.disconnect().await;
            Ok(TaskValue::None)
        })
    }
}
