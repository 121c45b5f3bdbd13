//! Striped connections of `uiw perf --stripes`, on the ports of the server.

use super::{Server, idle, perf};
use crate::fail::{BUSY, Failure, Result};
use crate::memory::Buffer;
use crate::perf::{pattern, raw::cpu_ns};
use crate::service::{Op, PerfReply, Stats, StripedOrder};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;
use uiw_verbs::cm::ConnRequest;
use uiw_verbs::{
    Access, ConnOptions, ConnSettings, Pd, Striped, StripedListener, StripedMessage, StripedSettings,
};

/// Their listener, which has no port of its own. Not with options that they cannot have.
pub(super) fn listener(pd: &Pd, local: SocketAddr, options: &ConnOptions) -> Option<StripedListener> {
    let settings = StripedSettings::default().conn(ConnSettings::default().options(options.clone()));
    let listener = StripedListener::beside(pd, local, &settings);
    listener.inspect_err(|error| tracing::warn!(%error, "striped connections are not served")).ok()
}

/// A Request of another kind comes back. One of a striped connection is rejected where its address has too many connections.
pub(super) fn offer(server: &Server, request: ConnRequest) -> Option<ConnRequest> {
    let Some(listener) = &server.striped else { return Some(request) };
    if !StripedListener::is_striped(&request) {
        return Some(request);
    }
    let address = request.peer_addr().ip();
    if let Err(busy) = server.sessions.enter(address) {
        let _ = request.reject(format!("{BUSY}: {busy}").as_bytes());
        return None;
    }
    // It is counted with all of its stripes once it is established.
    server.sessions.leave(address);
    listener.offer(request)
}

/// Wakes the thread that accepts.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Accepts until the server stops. The thread waits outside the device, so that it takes no work from the threads that serve connections.
pub(super) fn accept(server: &Arc<Server>) {
    let Some(listener) = &server.striped else { return };
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        let mut next = pin!(listener.accept());
        let next = loop {
            if server.stop.poll(&mut cx).is_ready() {
                return;
            }
            match next.as_mut().poll(&mut cx) {
                Poll::Ready(next) => break next,
                Poll::Pending => std::thread::park(),
            }
        };
        match next {
            Ok(connection) => begin(server, connection),
            Err(error) => return tracing::warn!(%error, "no striped connection can be accepted any more"),
        }
    }
}

/// The places of a connection's stripes among the server's connections.
struct Places {
    server: Arc<Server>,
    address: IpAddr,
    count: u8,
}

impl Drop for Places {
    fn drop(&mut self) {
        self.server.stop.forget_this_thread();
        (0..self.count).for_each(|_| self.server.sessions.leave(self.address));
    }
}

fn begin(server: &Arc<Server>, connection: Striped) {
    let peer = connection.info().peer;
    let mut places = Places { server: Arc::clone(server), address: peer.ip(), count: 0 };
    for _ in 0..connection.stripes() {
        if let Err(busy) = server.sessions.enter(peer.ip()) {
            return tracing::warn!(%peer, %busy, "striped connection ended");
        }
        places.count += 1;
    }
    let thread = std::thread::Builder::new().name(format!("uiw-{}", peer.port())).stack_size(super::STACK);
    let spawned = thread.spawn(move || {
        let identity = connection.info().peer_identity.as_ref().map(ToString::to_string);
        let stripes = connection.stripes();
        tracing::info!(%peer, identity, stripes, service = "striped perf", "connection");
        match serve(&places.server, &connection) {
            Ok(()) => tracing::info!(%peer, "connection over"),
            Err(failure) => tracing::warn!(%peer, error = failure.cause(), "connection failed"),
        }
        drop(connection);
        drop(places);
    });
    if let Err(error) = spawned {
        tracing::error!(%peer, %error, "no thread for a connection");
    }
}

/// The next message. `None`: the peer has closed, or the server stops.
fn next(server: &Server, connection: &Striped) -> Result<Option<StripedMessage>> {
    let peer = connection.info().peer;
    let mut moved = None;
    let mut message = pin!(connection.recv());
    loop {
        let limit = server.idle.as_ref().map(|idle| Instant::now() + idle.limit());
        let came = server.device.wait(limit, |cx| match server.stop.poll(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(None)),
            Poll::Pending => message.as_mut().poll(cx),
        });
        if let Some(came) = came {
            return came.map_err(|error| Failure::lost(peer, error));
        }
        // Writes and Reads take no message: whether anything moved between this host and that one.
        let now = idle::moved_with(&server.device, peer.ip());
        if limit.is_some_and(|limit| limit <= Instant::now()) && moved.replace(now) == Some(now) {
            return Err(Failure::lost(peer, "idle connection closed"));
        }
    }
}

/// Serves a measurement until the client closes.
fn serve(server: &Server, connection: &Striped) -> Result<()> {
    let peer = connection.info().peer;
    let Some(first) = next(server, connection)? else { return Ok(()) };
    let Some(order) = StripedOrder::of(&first) else {
        return Err(Failure::lost(peer, "its first message is no order of `uiw perf --stripes`"));
    };
    let (size, slots) = (order.size as usize, order.slots as usize);
    let memory = u64::from(order.size) * u64::from(order.slots);
    if size == 0 || slots == 0 || order.size > perf::MAX_SIZE || memory > perf::MAX_MEMORY {
        return Err(Failure::lost(peer, format!("asks for {slots} messages of {size} bytes")));
    }
    let _share = server.budget.take(memory).map_err(|why| Failure::lost(peer, why))?;
    let open = Buffer::shared(connection.pd(), size * slots, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    if order.validate && order.op == Op::Read {
        for slot in 0..slots {
            open.write(slot * size, &pattern::message(slot as u64, size))?;
        }
    }
    let remote = open.remote();
    answer(server, connection, &PerfReply { addr: remote.addr, rkey: remote.rkey.0, len: remote.len })?;
    let mut stats = Stats::default();
    while let Some(message) = next(server, connection)? {
        if message.is_empty() {
            answer(server, connection, &Stats { cpu_ns: cpu_ns(), ..stats })?;
            continue;
        }
        let is_wrong = order.validate && *message != *pattern::message(stats.messages, size);
        stats.wrong += u64::from(is_wrong);
        stats.messages += 1;
    }
    Ok(())
}

fn answer(server: &Server, connection: &Striped, answer: &impl serde::Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(answer).unwrap_or_default();
    let sent = server.device.block_on(connection.send_copy(&bytes));
    sent.map(drop).map_err(|error| Failure::lost(connection.info().peer, error))
}
