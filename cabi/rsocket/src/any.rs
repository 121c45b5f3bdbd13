//! Object behind a descriptor of an rsocket: a stream or a datagram socket, with the functions for
//! waiting.

use crate::datagram::Datagram;
use crate::numbers::{FileFlags, Numbers};
use crate::ready;
use crate::socket::Socket;
use crate::wait::WaitSource;
use crate::watchers::WakerPolicy;
use std::ffi::c_short;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use uiw_verbs::ShardSet;

/// A stream or datagram rsocket.
#[derive(Clone)]
pub(crate) enum AnySocket {
    Stream(Arc<Socket>),
    Datagram(Arc<Datagram>),
}

impl AnySocket {
    /// Returns the descriptor numbers that the program has for the socket.
    pub(crate) fn numbers(&self) -> &Numbers {
        match self {
            Self::Stream(socket) => socket.numbers(),
            Self::Datagram(socket) => socket.numbers(),
        }
    }

    /// Returns whether both are the same socket.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(one), Self::Stream(other)) => Arc::ptr_eq(one, other),
            (Self::Datagram(one), Self::Datagram(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns whether this socket is the stream `other`.
    pub(crate) fn is_stream(&self, other: &Arc<Socket>) -> bool {
        matches!(self, Self::Stream(one) if Arc::ptr_eq(one, other))
    }

    /// Returns the ready events among those that a program asks for.
    pub(crate) fn ready(&self, events: c_short) -> c_short {
        match self {
            Self::Stream(socket) => ready::ready_events(socket, events),
            Self::Datagram(socket) => socket.ready(events),
        }
    }

    /// Like [`AnySocket::ready`], but also registers the task under the condition `registers`. The
    /// next change wakes a registered task.
    pub(crate) fn poll_ready(
        &self,
        events: c_short,
        registers: WakerPolicy,
        cx: &mut Context<'_>,
    ) -> Poll<c_short> {
        match self {
            Self::Stream(socket) => ready::poll(socket, events, registers, cx),
            Self::Datagram(socket) => socket.poll_ready(events, registers, cx),
        }
    }

    fn wait_source(&self) -> &dyn WaitSource {
        match self {
            Self::Stream(socket) => &**socket,
            Self::Datagram(socket) => &**socket,
        }
    }

    /// Unregisters a task that does not wait any more.
    pub(crate) fn unwatch(&self, waker: &Waker) {
        self.wait_source().unwatch(waker);
    }

    /// Returns the shards of the socket's connection.
    pub(crate) fn shards(&self) -> ShardSet {
        self.wait_source().shards()
    }

    /// Counts an attempt of a call that does not wait, and yields the processor after many
    /// fruitless ones.
    pub(crate) fn yield_if_fruitless(&self, found: bool) {
        self.wait_source().attempts().note(found);
    }

    /// Reads or changes the flags of the socket.
    pub(crate) fn with_flags<R>(&self, body: impl FnOnce(&mut FileFlags) -> R) -> R {
        match self {
            Self::Stream(socket) => body(&mut socket.lock().flags),
            Self::Datagram(socket) => body(&mut socket.lock().flags),
        }
    }

    /// Returns the number of readable bytes; for datagrams, those of the next message.
    pub(crate) fn readable(&self) -> u64 {
        match self {
            Self::Stream(socket) => socket.update_then(None, |state| {
                state.stream().map_or(0, |stream| stream.receiver.readable())
            }),
            Self::Datagram(socket) => socket.readable(),
        }
    }

    /// Closes the socket after the program has closed its last descriptor.
    pub(crate) fn close(&self) {
        match self {
            Self::Stream(socket) => socket.close(),
            Self::Datagram(socket) => socket.close(),
        }
    }
}
