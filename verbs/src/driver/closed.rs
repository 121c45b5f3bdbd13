//! What is left of a device's stack when the device is gone.

use llp::{Event, ListenOptions, Listener, Stack, Stream, StreamOptions, Token};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Takes the place of a stack whose device was dropped: its addresses are free, though a thread of the engine may still be about to
/// look for news.
pub(super) struct ClosedStack;

fn closed<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::NotConnected, "the device is gone"))
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

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}
