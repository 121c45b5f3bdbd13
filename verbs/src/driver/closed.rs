//! The stack of a shard whose device was dropped.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;
use uiw_llp::{Event, ListenOptions, Listener, Stack, StackExtensions, Stream, StreamOptions, Token};

/// Replaces the stack of a device that was dropped: the addresses are free, although a thread of the engine may still be about to poll
/// the stack.
pub(super) struct ClosedStack;

fn closed<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::NotConnected, "the device was dropped"))
}

impl Stack for ClosedStack {
    fn listen(&mut self, _: SocketAddr, _: &ListenOptions, _: Token) -> io::Result<Box<dyn Listener>> {
        closed()
    }

    fn connect(
        &mut self,
        _: Option<SocketAddr>,
        _: SocketAddr,
        _: &StreamOptions,
        _: Token,
    ) -> io::Result<Box<dyn Stream>> {
        closed()
    }

    fn poll(&mut self, _: &mut Vec<Event>) -> io::Result<()> {
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl StackExtensions for ClosedStack {}
