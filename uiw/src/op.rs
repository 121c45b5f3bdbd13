//! Operations under way.

use crate::buf::{BufferError, IoBuf, Mr};
use crate::completions::ErasedBuffer;
use crate::dispatcher::ConnectionHandle;
use crate::error::{Error, Result};
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Makes the output of an operation from its outcome and from the memory that it worked on.
pub(crate) type FinishFn<T, E> = fn(Result<()>, ErasedBuffer) -> Result<T, E>;

/// An operation under way that gives its buffer back.
pub type BufferOp<B> = Op<Mr<B>, BufferError<Mr<B>>>;

/// An operation under way. It owns its memory until the completion.
///
/// It was posted by the function that returned it, behind all earlier operations of the connection;
/// if the send queue was full, it is posted when there is room (back-pressure, first come first
/// served). The future only waits for the completion. Dropping it, even before it is polled, does
/// not cancel the operation: the engine holds the memory until the operation completes or the
/// connection ends.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// // Both are under way before one is waited for.
/// let operations = ["one", "two"].map(|text| client.pd().register(text).map(|memory| client.send(memory)));
/// for operation in operations {
///     operation?.wait()?;
/// }
/// assert_eq!(server.recv()?.as_deref(), Some(&b"one"[..]));
/// # Ok(())
/// # }
/// ```
#[must_use = "the outcome of an operation that is dropped is lost"]
pub struct Op<T, E = Error> {
    dispatcher: Arc<ConnectionHandle>,
    ticket: Option<u64>,
    finish: FinishFn<T, E>,
}

impl<T, E> std::fmt::Debug for Op<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Op").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl<T, E> Op<T, E> {
    pub(crate) fn new(dispatcher: Arc<ConnectionHandle>, ticket: u64, finish: FinishFn<T, E>) -> Self {
        Self { dispatcher, ticket: Some(ticket), finish }
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// The errors are those of the operation; [`BufferError`] has the buffer.
    pub fn wait(self) -> Result<T, E> {
        let device = self.dispatcher.device().clone();
        device.block_on(self)
    }

    /// Like [`Op::wait`], but for at most `timeout`. Returns `None` if the operation is still under
    /// way then; it goes on, and can be waited for again.
    ///
    /// # Errors
    /// The errors are those of [`Op::wait`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<T, E>> {
        let device = self.dispatcher.device().clone();
        device.block_on_for(timeout, self)
    }
}

impl<T, E> Future for Op<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else { return Poll::Pending };
        let (result, buffer) = ready!(self.dispatcher.poll_op(ticket, cx));
        self.ticket = None;
        Poll::Ready((self.finish)(result, buffer))
    }
}

/// Gives the buffer of an operation back.
#[expect(clippy::result_large_err, reason = "the buffer goes back by value in both cases")]
pub(crate) fn return_buffer<B: IoBuf>(
    result: Result<()>,
    buffer: ErasedBuffer,
) -> Result<Mr<B>, BufferError<Mr<B>>> {
    let buffer = downcast_buffer::<Mr<B>>(buffer);
    match result {
        Ok(()) => Ok(buffer),
        Err(error) => Err(BufferError { error, buffer }),
    }
}

/// Returns the memory of an operation that was posted with a `T`.
pub(crate) fn downcast_buffer<T: 'static>(buffer: ErasedBuffer) -> T {
    let buffer: Box<dyn Any + Send> = buffer;
    match buffer.downcast() {
        Ok(kept) => *kept,
        Err(_) => unreachable!("the operation was posted with a T"),
    }
}

impl<T, E> Drop for Op<T, E> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.dispatcher.detach(ticket);
        }
    }
}
