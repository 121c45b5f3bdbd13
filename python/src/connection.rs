//! Common parts of the blocking and the asyncio classes: settings, addresses and listeners.

use futures_util::Stream as _;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use uiw::ConnectionConfig;

/// Host and port, in the form that Python's sockets use.
pub(crate) type Address = (String, u16);

/// Returns the first address of a name, which is resolved without the interpreter's lock.
pub(crate) fn resolve(py: Python<'_>, (host, port): Address) -> PyResult<SocketAddr> {
    let name = host.clone();
    let found = py.detach(|| (name.as_str(), port).to_socket_addrs().map(|mut all| all.next()));
    let found = found.map_err(|error| PyOSError::new_err(format!("{host}: {error}")))?;
    found.ok_or_else(|| PyOSError::new_err(format!("{host} has no address")))
}

/// Returns host and port of an address.
pub(crate) fn address(address: SocketAddr) -> Address {
    (address.ip().to_string(), address.port())
}

/// Returns the settings of the environment, changed by the arguments that are not `None`.
pub(crate) fn settings(
    private_data: Option<&Bound<'_, PyAny>>,
    max_message: Option<u32>,
) -> PyResult<ConnectionConfig> {
    let mut settings = crate::environment::connections()?;
    if let Some(data) = private_data {
        settings = settings.private_data(crate::buffer::copy(data)?);
    }
    if let Some(bytes) = max_message {
        settings = settings.max_message(bytes);
    }
    Ok(settings)
}

/// Error number that Python's sockets report for a call after `close`.
const EBADF: i32 = 9;

/// Listener that can be closed while calls wait for peers.
pub(crate) struct Port {
    local: SocketAddr,
    /// Listener, or `None` after it was closed.
    listener: Mutex<Option<uiw::Listener>>,
    calls: Arc<AcceptCalls>,
}

/// Calls that wait for a peer. They are woken together.
#[derive(Default)]
struct AcceptCalls(Mutex<WaitingCalls>);

#[derive(Default)]
struct WaitingCalls {
    /// Wakers by the numbers of the calls.
    wakers: BTreeMap<u64, Waker>,
    /// Number of the last call.
    last: u64,
}

impl AcceptCalls {
    fn lock(&self) -> MutexGuard<'_, WaitingCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for AcceptCalls {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut self.lock().wakers);
        wakers.into_values().for_each(Waker::wake);
    }
}

/// A call that waits for a peer.
struct AcceptCall<'a> {
    calls: &'a AcceptCalls,
    number: u64,
}

impl Drop for AcceptCall<'_> {
    fn drop(&mut self) {
        let waker = self.calls.lock().wakers.remove(&self.number);
        drop(waker);
    }
}

impl Port {
    pub(crate) fn new(listener: uiw::Listener) -> Self {
        let local = listener.local_addr();
        Self { local, listener: Mutex::new(Some(listener)), calls: Arc::default() }
    }

    pub(crate) fn address(&self) -> Address {
        address(self.local)
    }

    fn listener(&self) -> MutexGuard<'_, Option<uiw::Listener>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next peer. Dropping the future loses no peer.
    ///
    /// # Errors
    /// `OSError` if the listener is closed before or during the call.
    pub(crate) async fn accept(&self) -> PyResult<uiw::Connection> {
        let number = {
            let mut calls = self.calls.lock();
            calls.last += 1;
            calls.last
        };
        let call = AcceptCall { calls: &self.calls, number };
        poll_fn(|cx| self.poll_accept(call.number, cx)).await
    }

    fn poll_accept(&self, call: u64, cx: &mut Context<'_>) -> Poll<PyResult<uiw::Connection>> {
        // Registered before the poll, so that a peer that connects after it wakes the call.
        let before = self.calls.lock().wakers.insert(call, cx.waker().clone());
        drop(before);
        let mut listener = self.listener();
        let Some(listener) = listener.as_mut() else {
            return Poll::Ready(Err(PyOSError::new_err((EBADF, "the listener is closed"))));
        };
        let waker = Waker::from(Arc::clone(&self.calls));
        let accepted = Pin::new(listener).poll_next(&mut Context::from_waker(&waker));
        accepted.map(|accepted| match accepted {
            Some(accepted) => accepted.map_err(crate::error::raise),
            None => unreachable!("a listener is a stream without an end"),
        })
    }

    /// Stops listening. Calls that wait for a peer fail. Accepted connections continue.
    pub(crate) fn close(&self) {
        let listener = self.listener().take();
        drop(listener);
        Arc::clone(&self.calls).wake();
    }
}
