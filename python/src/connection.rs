//! Common parts of the blocking and the asyncio classes: settings, addresses and listeners.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
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
    state: Mutex<PortState>,
}

struct PortState {
    /// Listener, or `None` after it was closed.
    listener: Option<uiw::Listener>,
    /// Wakers of calls that wait for a peer, by the numbers of the calls.
    accepting: BTreeMap<u64, Waker>,
    /// Number of the next call.
    next_call: u64,
}

/// A call that waits for a peer.
struct AcceptCall<'a> {
    port: &'a Port,
    number: u64,
}

impl Drop for AcceptCall<'_> {
    fn drop(&mut self) {
        let waker = self.port.state().accepting.remove(&self.number);
        drop(waker);
    }
}

impl Port {
    pub(crate) fn new(listener: uiw::Listener) -> Self {
        let local = listener.local_addr();
        let state =
            PortState { listener: Some(listener), accepting: BTreeMap::new(), next_call: 0 };
        Self { local, state: Mutex::new(state) }
    }

    pub(crate) fn address(&self) -> Address {
        address(self.local)
    }

    fn state(&self) -> MutexGuard<'_, PortState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next peer. Dropping the future loses no peer.
    ///
    /// # Errors
    /// `OSError` if the listener is closed before or during the call.
    pub(crate) async fn accept(&self) -> PyResult<uiw::Connection> {
        let number = {
            let mut state = self.state();
            state.next_call += 1;
            state.next_call
        };
        let call = AcceptCall { port: self, number };
        poll_fn(|cx| self.poll_accept(call.number, cx)).await
    }

    fn poll_accept(&self, call: u64, cx: &mut Context<'_>) -> Poll<PyResult<uiw::Connection>> {
        let mut state = self.state();
        let Some(listener) = &state.listener else {
            return Poll::Ready(Err(PyOSError::new_err((EBADF, "the listener is closed"))));
        };
        let accepted = pin!(listener.accept()).poll(cx);
        if accepted.is_pending() {
            state.accepting.insert(call, cx.waker().clone());
        }
        accepted.map_err(crate::error::raise)
    }

    /// Stops listening. Calls that wait for a peer fail. Accepted connections continue.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let (listener, accepting) = (state.listener.take(), std::mem::take(&mut state.accepting));
        drop(state);
        drop(listener);
        accepting.into_values().for_each(Waker::wake);
    }
}
