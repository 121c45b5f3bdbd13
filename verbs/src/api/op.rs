//! Operations under way.

use crate::api::buf::{IoBuf, Mr};
use crate::api::dispatcher::Handle;
use crate::error::Error;
use crate::wc::{Wc, WcStatus, WireReason};
use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WcError {
    /// It was posted and completed with an error.
    #[error("{}: {status}{}", peer, describe(*reason))]
    Completed {
        /// Status of the completion.
        status: WcStatus,
        /// The wire's reason, where there is one.
        reason: Option<WireReason>,
        /// The peer.
        peer: SocketAddr,
    },
    /// It could not be posted.
    #[error(transparent)]
    Refused(#[from] Error),
}

/// As `io::Error` from [`Error`]; a completion with an error is [`std::io::ErrorKind::ConnectionAborted`] where it was flushed, and
/// [`std::io::ErrorKind::Other`] otherwise.
impl From<WcError> for std::io::Error {
    fn from(error: WcError) -> Self {
        match error {
            WcError::Refused(error) => error.into(),
            WcError::Completed { status: WcStatus::Flushed, .. } => {
                Self::new(std::io::ErrorKind::ConnectionAborted, error)
            }
            WcError::Completed { .. } => Self::other(error),
        }
    }
}

fn describe(reason: Option<WireReason>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// What an operation ends with: its result and its buffer.
pub type Done<B> = (Result<Wc, WcError>, Mr<B>);

/// An operation under way. It owns its buffer until the completion.
///
/// It is posted when it is made if the send queue has room, otherwise when room has come (back-pressure, first come first served).
/// Dropping it detaches it, posted or not: the request goes on in its turn, and the engine holds the buffer until it completes or the
/// connection ends. RDMA cannot cancel single requests.
#[must_use = "the outcome of an operation that is dropped is lost"]
pub struct Op<B: IoBuf> {
    dispatcher: Arc<Handle>,
    ticket: Option<u64>,
    buffer: PhantomData<fn() -> B>,
}

impl<B: IoBuf> std::fmt::Debug for Op<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Op").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl<B: IoBuf> Op<B> {
    pub(super) fn new(dispatcher: Arc<Handle>, ticket: u64) -> Self {
        Self { dispatcher, ticket: Some(ticket), buffer: PhantomData }
    }

    /// Waits on this thread.
    pub fn wait(self) -> Done<B> {
        let device = self.dispatcher.device().clone();
        device.block_on(self)
    }

    /// The outcome, if it is there; otherwise the operation again.
    ///
    /// # Errors
    /// The operation, when it is not over.
    pub fn try_take(mut self) -> Result<Done<B>, Self> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match Pin::new(&mut self).poll(&mut cx) {
            Poll::Ready(done) => Ok(done),
            Poll::Pending => Err(self),
        }
    }
}

impl<B: IoBuf> Unpin for Op<B> {}

impl<B: IoBuf> Future for Op<B> {
    type Output = Done<B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done<B>> {
        let Some(ticket) = self.ticket else { return Poll::Pending };
        let (result, buffer) = match self.dispatcher.poll_op(ticket, cx) {
            Poll::Ready(done) => done,
            Poll::Pending => return Poll::Pending,
        };
        self.ticket = None;
        let buffer: Box<dyn Any + Send> = buffer;
        match buffer.downcast::<Mr<B>>() {
            Ok(buffer) => Poll::Ready((result, *buffer)),
            Err(_) => unreachable!("the ticket was made with an Mr<B>"),
        }
    }
}

impl<B: IoBuf> Drop for Op<B> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.dispatcher.detach(ticket);
        }
    }
}
