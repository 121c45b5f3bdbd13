//! Bytes that a program sends before the connection is made.
//!
//! TCP takes them while the peer has not accepted the connection, and a program of one thread may
//! send first and accept then. An rsocket has room for them where the kernel's connection stands: a
//! task of the service sends them when the peer answers, and then closes the directions that the
//! program has closed. A blocking call waits for the answer before, as most peers give it at once.
//!
//! A socket that the program has closed meanwhile waits for a bounded time, as one of TCP that no
//! process has any more: a peer that never accepts would keep a connection for each that is closed.

use crate::service::{self, ClosingToken, Timer};
use crate::socket::{Phase, Socket, State};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Time for which a blocking call waits for the peer's answer before its bytes are kept. Most peers
/// answer in much less.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);

impl State {
    /// Returns whether the connection is being made, over one of the kernel that stands.
    pub(super) fn is_beginning(&self) -> bool {
        self.opened.is_some() && self.has_peer() && !matches!(self.phase, Phase::Connected(..))
    }

    /// Returns whether there is room for what is sent before the connection is made.
    pub(super) fn has_early_room(&self) -> bool {
        let room = self.set.sizes.bounded().sent as usize;
        self.is_beginning() && self.opened.as_ref().is_some_and(|opened| opened.early.len() < room)
    }

    /// Returns whether bytes are kept.
    pub(super) fn has_early(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| !opened.early.is_empty())
    }

    /// Sends what was kept, as far as there is room.
    ///
    /// # Errors
    /// EAGAIN while some of it is left; those of a connection that has failed.
    pub(super) fn flush_early(&mut self) -> Result<()> {
        if !self.has_early() {
            return Ok(());
        }
        let flushed = self.send_kept();
        if !matches!(flushed, Err(Errno::AGAIN)) {
            if let Some(opened) = &mut self.opened {
                opened.early = VecDeque::new();
            }
            self.shut_early();
        }
        flushed
    }

    fn send_kept(&mut self) -> Result<()> {
        let is_beginning = self.is_beginning();
        let (Phase::Connected(stream, _), Some(opened)) = (&mut self.phase, &mut self.opened) else {
            return Err(if is_beginning { Errno::AGAIN } else { Errno(libc::ECONNRESET) });
        };
        while !opened.early.is_empty() {
            let parts = <[&[u8]; 2]>::from(opened.early.as_slices());
            let sent = stream.send(parts.into_iter(), opened.early.len() as u64)?;
            opened.early.drain(..sent as usize);
        }
        Ok(())
    }

    /// The program closes the socket. Whether it stays until the connection is made and what was
    /// kept is sent, and, then, whether it needs a task for that.
    pub(super) fn close_early(&mut self) -> Option<bool> {
        // SO_LINGER of no time cuts the connection.
        if self.set.linger == Some(0) || !self.is_beginning() && !self.has_early() {
            return None;
        }
        self.opened.as_mut().map(|opened| !std::mem::replace(&mut opened.has_task, true))
    }
}

impl State {
    /// The program has closed the socket, and the peer has not answered: the next close cuts the
    /// connection.
    fn give_up(&mut self) {
        if let Some(opened) = &mut self.opened {
            (opened.early, opened.has_task) = (VecDeque::new(), false);
        }
        self.set.linger = Some(0);
    }
}

impl Socket {
    /// Keeps bytes that are sent before the connection is made; how many.
    ///
    /// # Errors
    /// EAGAIN where there is no room, or the connection is not one that is being made.
    pub(super) fn send_early<'a>(self: &Arc<Self>, mut parts: impl Iterator<Item = &'a [u8]>) -> Result<u64> {
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
            self.spawn_early()?;
        }
        if kept == 0 { Err(Errno::AGAIN) } else { Ok(kept as u64) }
    }

    /// Returns whether the time for which it waits without a number has passed. The first call
    /// begins it.
    fn is_over(&self, limit: &mut Option<Timer>, cx: &mut Context<'_>) -> bool {
        if limit.is_none() {
            *limit = Timer::after(self.lock().set.orphan_timeout).ok();
        }
        limit.as_mut().is_none_or(|limit| Pin::new(limit).poll(cx).is_ready())
    }

    /// Sends what is kept when the peer answers.
    pub(super) fn spawn_early(self: &Arc<Self>) -> Result<()> {
        let (socket, closing) = (Arc::clone(self), ClosingToken::new());
        service::spawn(async move {
            let mut limit = None;
            std::future::poll_fn(|cx| {
                let flushed = socket.poll(cx, |state| match state.flush_early() {
                    Err(Errno::AGAIN) => Poll::Pending,
                    _ if state.is_beginning() => Poll::Pending,
                    _ => {
                        if let Some(opened) = &mut state.opened {
                            opened.has_task = false;
                        }
                        Poll::Ready(())
                    }
                });
                if flushed.is_pending() && socket.numbers().is_empty() && socket.is_over(&mut limit, cx) {
                    tracing::info!("a closed rsocket does not wait any longer for its peer to accept it");
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
