//! Wrappers: stacks that change some methods of a stack that they contain and of its streams, such
//! as `uiw_impair::fault` and [`capture`](crate::capture).
//!
//! A wrapper is a [`StackHooks`] with its [`StreamHooks`]. A hook replaces the method of the same
//! name of [`TransportStack`], [`TransportStream`] or their extension traits. It is also given the
//! inner stack or stream, and by default calls the inner object's method. All other methods are
//! forwarded, except [`StreamExtensions::peek`]: a wrapped stream does not offer it, so every
//! received byte passes through [`StreamHooks::recv`].
//!
//! ```
//! use uiw_llp::tcp::TcpStack;
//! use uiw_llp::wrap::{Origin, StackHooks, StreamHooks, WrappedStack};
//! use uiw_llp::{StackExtensions, TransportStream, TransportConfig, Token};
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use std::{io, sync::Arc};
//!
//! /// Counts the bytes that all shards send.
//! #[derive(Clone, Default)]
//! struct Count(Arc<AtomicUsize>);
//!
//! impl StackHooks for Count {
//!     type Stream = Self;
//!
//!     fn stream(&self, _: &dyn TransportStream, _: Origin, _: Token) -> Self {
//!         self.clone()
//!     }
//! }
//!
//! impl StreamHooks for Count {
//!     fn send(&mut self, inner: &mut dyn TransportStream, bufs: &[uiw_mem::IoVec<'_>]) -> io::Result<usize> {
//!         inner.send(bufs).inspect(|sent| _ = self.0.fetch_add(*sent, Ordering::Relaxed))
//!     }
//! }
//!
//! let count = Count::default();
//! let mut stack = WrappedStack { inner: Box::new(TcpStack::new()?), hooks: count.clone() };
//! let mut stream = stack.connect_self(([127, 0, 0, 1], 0).into(), &TransportConfig::default(), Token(1))?;
//! while !stream.connect_result()? {}
//! stream.send(&[uiw_mem::IoVec::from(&b"four"[..])])?;
//! assert_eq!(count.0.load(Ordering::Relaxed), 4);
//! # Ok::<(), io::Error>(())
//! ```

use crate::{
    DatagramConfig, DatagramSocket, Event, Interest, ListenConfig, PeerIdentity, StackExtensions,
    StreamChange, StreamExtensions, StreamInfo, Token, TransportConfig, TransportListener,
    TransportStack, TransportStream, foreign_stream,
};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use uiw_mem::{IoVec, IoVecMut};

/// Method that created a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// [`TransportStack::connect`], and [`StackExtensions::open_socket`] with a peer.
    Connected,
    /// [`StackExtensions::connect_self`].
    ConnectedToSelf,
    /// [`TransportListener::accept`], and [`StackExtensions::open_socket`] without a peer.
    Accepted,
}

/// Changes that a wrapper makes to a stack. Each listener has a clone, which creates the hooks for
/// the streams that it accepts.
pub trait StackHooks: Clone + Send + 'static {
    /// Type of the hooks for a stream; `()` changes nothing.
    type Stream: StreamHooks;

    /// Returns the hooks for a new stream, whose events will have `token`.
    fn stream(&self, inner: &dyn TransportStream, origin: Origin, token: Token) -> Self::Stream;

    /// Returns the hooks for another shard, whose inner stack is `inner`.
    fn shard(&self, _inner: &dyn TransportStack) -> Self {
        self.clone()
    }

    /// Called before [`TransportStack::listen`].
    fn before_listen(&mut self, _token: Token) {}

    /// Called before [`TransportStack::connect`], [`StackExtensions::open_socket`] with a peer, and
    /// [`StackExtensions::connect_self`].
    fn before_connect(&mut self, _inner: &dyn TransportStack) {}

    /// Returns the socket to use instead of `inner`, which was just bound. Its events will have
    /// `token`.
    fn datagrams(&self, inner: Box<dyn DatagramSocket>, _token: Token) -> Box<dyn DatagramSocket> {
        inner
    }

    /// Replaces [`TransportStack::poll`].
    fn poll(&mut self, inner: &mut dyn TransportStack, events: &mut Vec<Event>) -> io::Result<()> {
        inner.poll(events)
    }

    /// Replaces [`StackExtensions::wait_fd`].
    fn wait_fd(&self, inner: &dyn TransportStack) -> Option<Arc<OwnedFd>> {
        inner.wait_fd()
    }

    /// Replaces [`TransportStack::deadline`].
    fn deadline(&self, inner: &dyn TransportStack) -> Option<Instant> {
        inner.deadline()
    }

    /// Replaces [`TransportStack::now`].
    fn now(&self, inner: &dyn TransportStack) -> Instant {
        inner.now()
    }

    /// Replaces [`StackExtensions::adopt`].
    fn adopt(
        &mut self,
        inner: &mut dyn TransportStack,
        stream: &mut Box<dyn TransportStream>,
        token: Token,
    ) -> io::Result<()> {
        inner.adopt(&mut WrappedStream::<Self::Stream>::of(&mut **stream)?.inner, token)
    }
}

/// Changes that a wrapper makes to a stream.
pub trait StreamHooks: Send + 'static {
    /// Replaces [`TransportStream::send`].
    fn send(&mut self, inner: &mut dyn TransportStream, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        inner.send(bufs)
    }

    /// Replaces [`TransportStream::recv`].
    fn recv(
        &mut self,
        inner: &mut dyn TransportStream,
        bufs: &mut [IoVecMut<'_>],
    ) -> io::Result<usize> {
        inner.recv(bufs)
    }

    /// Replaces [`StreamExtensions::readable`].
    fn readable(
        &mut self,
        inner: &mut dyn TransportStream,
        wanted: usize,
    ) -> io::Result<Option<crate::Readable>> {
        inner.readable(wanted)
    }

    /// Replaces [`TransportStream::set_interest`].
    fn set_interest(
        &mut self,
        inner: &mut dyn TransportStream,
        interest: Interest,
    ) -> io::Result<()> {
        inner.set_interest(interest)
    }

    /// Replaces [`TransportStream::connect_result`].
    fn connect_result(&mut self, inner: &mut dyn TransportStream) -> io::Result<bool> {
        inner.connect_result()
    }

    /// Replaces [`TransportStream::shutdown`].
    fn shutdown(&mut self, inner: &mut dyn TransportStream) -> io::Result<()> {
        inner.shutdown()
    }

    /// Replaces [`TransportStream::abort`].
    fn abort(&mut self, inner: &mut dyn TransportStream) {
        inner.abort();
    }

    /// Replaces [`StreamExtensions::detach`].
    fn detach(&mut self, inner: &mut dyn TransportStream) -> io::Result<()> {
        inner.detach()
    }

    /// Replaces [`StreamExtensions::take_socket`]. Data that is sent and received over the socket
    /// does not pass through hooks.
    fn take_socket(&mut self, inner: &mut dyn TransportStream) -> io::Result<OwnedFd> {
        inner.take_socket()
    }

    /// Called before the inner stream is dropped.
    fn before_drop(&mut self, _inner: &mut dyn TransportStream) {}
}

impl StreamHooks for () {}

/// Stack with hooks.
pub struct WrappedStack<H> {
    /// Inner stack.
    pub inner: Box<dyn TransportStack>,
    /// Hooks that change the behaviour of the inner stack.
    pub hooks: H,
}

/// Stream with hooks.
pub struct WrappedStream<H: StreamHooks> {
    /// Inner stream.
    pub inner: Box<dyn TransportStream>,
    /// Hooks that change the behaviour of the inner stream.
    pub hooks: H,
}

impl<H: StreamHooks> WrappedStream<H> {
    /// Returns the stream as a wrapped stream with hooks of this type.
    ///
    /// # Errors
    /// `InvalidInput`, as specified by [`StackExtensions::adopt`]: the stream has another type.
    pub fn of(stream: &mut dyn TransportStream) -> io::Result<&mut Self> {
        stream.downcast_mut().ok_or_else(foreign_stream)
    }
}

impl<H: fmt::Debug> fmt::Debug for WrappedStack<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappedStack").field("hooks", &self.hooks).finish_non_exhaustive()
    }
}

impl<H: StreamHooks + fmt::Debug> fmt::Debug for WrappedStream<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappedStream")
            .field("peer", &self.inner.peer_addr())
            .field("hooks", &self.hooks)
            .finish_non_exhaustive()
    }
}

struct WrappedListener<H> {
    inner: Box<dyn TransportListener>,
    hooks: H,
}

fn wrap(
    hooks: &impl StackHooks,
    inner: Box<dyn TransportStream>,
    origin: Origin,
    token: Token,
) -> Box<dyn TransportStream> {
    let hooks = hooks.stream(&*inner, origin, token);
    Box::new(WrappedStream { inner, hooks })
}

impl<H: StackHooks> TransportStack for WrappedStack<H> {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportListener>> {
        self.hooks.before_listen(token);
        let inner = self.inner.listen(local, options, token)?;
        Ok(Box::new(WrappedListener { inner, hooks: self.hooks.clone() }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        self.hooks.before_connect(&*self.inner);
        let inner = self.inner.connect(local, peer, options, token)?;
        Ok(wrap(&self.hooks, inner, Origin::Connected, token))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.hooks.poll(&mut *self.inner, events)
    }

    fn deadline(&self) -> Option<Instant> {
        self.hooks.deadline(&*self.inner)
    }

    fn now(&self) -> Instant {
        self.hooks.now(&*self.inner)
    }
}

impl<H: StackHooks> StackExtensions for WrappedStack<H> {
    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        self.hooks.before_connect(&*self.inner);
        let inner = self.inner.connect_self(local, options, token)?;
        Ok(wrap(&self.hooks, inner, Origin::ConnectedToSelf, token))
    }

    fn open_socket(
        &mut self,
        socket: OwnedFd,
        peer: Option<SocketAddr>,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        if peer.is_some() {
            self.hooks.before_connect(&*self.inner);
        }
        let inner = self.inner.open_socket(socket, peer, options, token)?;
        let origin = if peer.is_some() { Origin::Connected } else { Origin::Accepted };
        Ok(wrap(&self.hooks, inner, origin, token))
    }

    fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        options: &DatagramConfig,
        token: Token,
    ) -> io::Result<Box<dyn DatagramSocket>> {
        let inner = self.inner.bind_datagrams(local, options, token)?;
        Ok(self.hooks.datagrams(inner, token))
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        self.hooks.wait_fd(&*self.inner)
    }

    fn shard(&self) -> io::Result<Option<Box<dyn TransportStack>>> {
        let Some(inner) = self.inner.shard()? else { return Ok(None) };
        let hooks = self.hooks.shard(&*inner);
        Ok(Some(Box::new(Self { inner, hooks })))
    }

    fn adopt(&mut self, stream: &mut Box<dyn TransportStream>, token: Token) -> io::Result<()> {
        self.hooks.adopt(&mut *self.inner, stream, token)
    }

    fn drain(&mut self) -> bool {
        self.inner.drain()
    }
}

impl<H: StackHooks> TransportListener for WrappedListener<H> {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn TransportStream>> {
        let inner = self.inner.accept(token)?;
        Ok(wrap(&self.hooks, inner, Origin::Accepted, token))
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
}

impl<H: StreamHooks> TransportStream for WrappedStream<H> {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.hooks.send(&mut *self.inner, bufs)
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.hooks.recv(&mut *self.inner, bufs)
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.hooks.set_interest(&mut *self.inner, interest)
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        self.hooks.connect_result(&mut *self.inner)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.hooks.shutdown(&mut *self.inner)
    }

    fn abort(&mut self) {
        self.hooks.abort(&mut *self.inner);
    }

    fn emss(&self) -> usize {
        self.inner.emss()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }
}

impl<H: StreamHooks> StreamExtensions for WrappedStream<H> {
    fn readable(&mut self, wanted: usize) -> io::Result<Option<crate::Readable>> {
        self.hooks.readable(&mut *self.inner, wanted)
    }

    fn info(&self) -> StreamInfo {
        self.inner.info()
    }

    fn configure(&mut self, change: &StreamChange<'_>) -> io::Result<()> {
        self.inner.configure(change)
    }

    fn detach(&mut self) -> io::Result<()> {
        self.hooks.detach(&mut *self.inner)
    }

    fn take_socket(&mut self) -> io::Result<OwnedFd> {
        self.hooks.take_socket(&mut *self.inner)
    }

    fn peer_identity(&self) -> Option<Arc<PeerIdentity>> {
        self.inner.peer_identity()
    }

    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        self.inner.kernel_socket()
    }
}

impl<H: StreamHooks> Drop for WrappedStream<H> {
    fn drop(&mut self) {
        self.hooks.before_drop(&mut *self.inner);
    }
}
