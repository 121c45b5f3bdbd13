//! Data that a program sends before the connection is established.
//!
//! TCP accepts data while the peer has not accepted the connection yet, and a program with one
//! thread may first send and then accept. An rsocket therefore stores such data while the kernel's
//! connection is established and the RDMA connection is not. A task of the service sends the data
//! when the peer answers, and then shuts down the directions that the program has shut down. A
//! blocking call first waits briefly for the answer, because most peers answer immediately.
//!
//! A socket that the program has closed meanwhile waits for a limited time, like a TCP socket that
//! no process refers to any more. Otherwise a peer that never accepts would keep a connection for
//! each closed socket.

use crate::service::{self, ClosingToken, Timer};
use crate::socket::{Phase, Socket, State};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Time for which a blocking call waits for the peer's answer before its data is stored. Most peers
/// answer much faster.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);

impl State {
    /// Returns whether the connection is being established over an established connection of the
    /// kernel.
    pub(super) fn is_beginning(&self) -> bool {
        self.opened.is_some() && self.has_peer() && !matches!(self.phase, Phase::Connected(..))
    }

    /// Returns whether there is room for data that is sent before the connection is established.
    pub(super) fn has_early_room(&self) -> bool {
        let room = self.set.sizes.bounded().sent as usize;
        self.is_beginning() && self.opened.as_ref().is_some_and(|opened| opened.early.len() < room)
    }

    /// Returns whether data is stored that was sent before the connection was established.
    pub(super) fn has_early_data(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| !opened.early.is_empty())
    }

    /// Sends stored data, as far as there is room.
    ///
    /// # Errors
    /// EAGAIN if some of it is left; the errors of a connection that has failed.
    pub(super) fn flush_early_data(&mut self) -> Result<()> {
        if !self.has_early_data() {
            return Ok(());
        }
        let flushed = self.send_stored();
        if !matches!(flushed, Err(Errno::AGAIN)) {
            if let Some(opened) = &mut self.opened {
                opened.early = VecDeque::new();
            }
            self.apply_early_shutdown();
        }
        flushed
    }

    fn send_stored(&mut self) -> Result<()> {
        let is_beginning = self.is_beginning();
        let (Phase::Connected(stream, _), Some(opened)) = (&mut self.phase, &mut self.opened)
        else {
            return Err(if is_beginning { Errno::AGAIN } else { Errno(libc::ECONNRESET) });
        };
        while !opened.early.is_empty() {
            let parts = <[&[u8]; 2]>::from(opened.early.as_slices());
            let sent = stream.send(parts.into_iter(), opened.early.len() as u64)?;
            opened.early.drain(..sent as usize);
        }
        Ok(())
    }

    /// Handles that the program closes the socket. Returns `Some` if the socket stays until the
    /// connection is established and the stored data is sent; the value tells whether a task has to
    /// be started for that.
    pub(super) fn defer_close(&mut self) -> Option<bool> {
        // SO_LINGER with a time of 0 aborts the connection.
        if self.set.linger == Some(0) || !self.is_beginning() && !self.has_early_data() {
            return None;
        }
        self.opened.as_mut().map(|opened| !std::mem::replace(&mut opened.has_task, true))
    }
}

impl State {
    /// Gives up a closed socket whose peer has not answered: the next close aborts the connection.
    fn give_up(&mut self) {
        if let Some(opened) = &mut self.opened {
            (opened.early, opened.has_task) = (VecDeque::new(), false);
        }
        self.set.linger = Some(0);
    }
}

impl Socket {
    /// Stores data that is sent before the connection is established. Returns the number of bytes
    /// stored.
    ///
    /// # Errors
    /// EAGAIN if there is no room, if the connection is not being established, or if the task
    /// cannot be started; EPIPE if the program has shut down writing.
    pub(super) fn store_early_data<'a>(
        self: &Arc<Self>,
        mut parts: impl Iterator<Item = &'a [u8]>,
    ) -> Result<u64> {
        let mut state = self.lock();
        let room = state.set.sizes.bounded().sent as usize;
        if !state.is_beginning() {
            return Err(Errno::AGAIN);
        }
        if state.is_write_shut_early() {
            return Err(Errno(libc::EPIPE));
        }
        let Some(opened) = &mut state.opened else { return Err(Errno::AGAIN) };
        let before = opened.early.len();
        while opened.early.len() < room
            && let Some(part) = parts.next()
        {
            let len = part.len().min(room - opened.early.len());
            opened.early.extend(&part[..len]);
        }
        let kept = opened.early.len() - before;
        let needs_task = kept > 0 && !std::mem::replace(&mut opened.has_task, true);
        drop(state);
        if needs_task {
            self.spawn_early_task()?;
        }
        if kept == 0 { Err(Errno::AGAIN) } else { Ok(kept as u64) }
    }

    /// Returns whether the time has passed for which a socket without a descriptor waits. The first
    /// call starts this time.
    fn is_over(&self, limit: &mut Option<Timer>, cx: &mut Context<'_>) -> bool {
        if limit.is_none() {
            *limit = Timer::after(self.lock().set.orphan_timeout).ok();
        }
        limit.as_mut().is_none_or(|limit| Pin::new(limit).poll(cx).is_ready())
    }

    /// Starts a task that sends the stored data and performs the early shutdown when the peer
    /// answers, and then closes the socket if the program has closed its last descriptor.
    pub(super) fn spawn_early_task(self: &Arc<Self>) -> Result<()> {
        let (socket, closing) = (Arc::clone(self), ClosingToken::new());
        service::spawn(async move {
            let mut limit = None;
            std::future::poll_fn(|cx| {
                let flushed = socket.poll(cx, |state| match state.flush_early_data() {
                    Err(Errno::AGAIN) => Poll::Pending,
                    _ if state.is_beginning() => Poll::Pending,
                    _ => {
                        if let Some(opened) = &mut state.opened {
                            opened.has_task = false;
                        }
                        Poll::Ready(())
                    }
                });
                if flushed.is_pending()
                    && socket.numbers().is_empty()
                    && socket.is_over(&mut limit, cx)
                {
                    tracing::info!(
                        "a closed rsocket does not wait any longer for its peer to accept it"
                    );
                    socket.lock().give_up();
                    return Poll::Ready(());
                }
                flushed
            })
            .await;
            socket.wake(None);
            if socket.numbers().is_empty() {
                socket.close();
            }
            drop(closing);
        })
    }
}
