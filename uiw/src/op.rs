//! Operations in progress.

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

/// Function that converts the outcome of an operation and the memory that it used to its output.
pub(crate) type FinishFn<T, E> = fn(Result<()>, ErasedBuffer) -> Result<T, E>;

/// Operation in progress that returns its buffer.
pub type BufferOp<B> = Op<Mr<B>, BufferError<Mr<B>>>;

/// Operation in progress, which owns its memory until it completes.
///
/// The function that returned it has already posted the operation, after all earlier operations of
/// the connection. If the send queue was full, the operation is posted when there is room, in the
/// order of the calls. The future only waits for the completion. Dropping it, even before it is
/// polled, does not cancel the operation: the engine keeps the memory until the operation completes
/// or the connection ends.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// // Both operations start before the program waits for the first one.
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
    pub(crate) fn new(
        dispatcher: Arc<ConnectionHandle>,
        ticket: u64,
        finish: FinishFn<T, E>,
    ) -> Self {
        Self { dispatcher, ticket: Some(ticket), finish }
    }

    /// Blocks this thread until the operation completes.
    ///
    /// # Errors
    /// The errors are those of the operation. A [`BufferError`] contains the buffer.
    pub fn wait(self) -> Result<T, E> {
        let device = self.dispatcher.device().clone();
        device.block_on(self)
    }

    /// Like [`Op::wait`], but waits for at most `timeout`. Returns `None` if the operation is still
    /// in progress then; it continues, and the program can wait for it again.
    ///
    /// # Errors
    /// The errors are those of [`Op::wait`].
    ///
    /// # Panics
    /// Panics if the result was returned before.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<T, E>> {
        let device = self.dispatcher.device().clone();
        device.block_on_for(timeout, self)
    }
}

impl<T, E> Future for Op<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else {
            panic!("the result of an operation is returned once")
        };
        let (result, buffer) = ready!(self.dispatcher.poll_op(ticket, cx));
        self.ticket = None;
        Poll::Ready((self.finish)(result, buffer))
    }
}

/// Returns the buffer of an operation to the program, with the error if the operation failed.
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

/// Converts the buffer of an operation that was posted with a `T` back to that type.
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
