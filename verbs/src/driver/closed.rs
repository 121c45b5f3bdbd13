//! The stack of a shard whose device was dropped.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;
use uiw_llp::{
    Event, ListenConfig, StackExtensions, Token, TransportConfig, TransportListener,
    TransportStack, TransportStream,
};

/// Replaces the stack of a device that was dropped: the addresses are free, although a thread of
/// the engine may still be about to poll the stack.
pub(super) struct ClosedStack;

fn closed<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::NotConnected, "the device was dropped"))
}

impl TransportStack for ClosedStack {
    fn listen(
        &mut self,
        _: SocketAddr,
        _: &ListenConfig,
        _: Token,
    ) -> io::Result<Box<dyn TransportListener>> {
        closed()
    }

    fn connect(
        &mut self,
        _: Option<SocketAddr>,
        _: SocketAddr,
        _: &TransportConfig,
        _: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
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
