//! Operations under way.

use super::shared::Handle;
use crate::api::buf::{IoBuf, Mr};
use crate::api::op::OpError;
use crate::wc::Wc;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An operation of a striped connection that is under way. It owns its buffer until the completion.
///
/// It is over when it is proven to be executed and every operation that was posted before is over. Dropping it detaches it: the request
/// goes on in its turn. The number of the request is [`Wc::wr_id`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = striped()?;
/// let pd = client.as_async().pd();
/// // Both are under way before one is waited for.
/// let operations = ["one", "two"].map(|text| pd.register(text).map(|memory| client.send(memory)));
/// for (operation, number) in operations.into_iter().zip(1..) {
///     let (completion, _) = operation?.wait()?;
///     assert_eq!(completion.wr_id, number);
/// }
/// assert_eq!(server.recv()?.as_deref(), Some(&b"one"[..]));
/// # Ok(())
/// # }
/// ```
#[must_use = "the outcome of an operation that is dropped is lost"]
pub struct StripedOp<B: IoBuf> {
    handle: Arc<Handle>,
    op: Option<usize>,
    buffer: PhantomData<fn() -> B>,
}

impl<B: IoBuf> std::fmt::Debug for StripedOp<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripedOp").field("op", &self.op).finish_non_exhaustive()
    }
}

impl<B: IoBuf> StripedOp<B> {
    /// `op` was made with an `Mr<B>`.
    pub(super) fn new(handle: Arc<Handle>, op: usize) -> Self {
        Self { handle, op: Some(op), buffer: PhantomData }
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// [`OpError`], with the buffer.
    #[expect(clippy::result_large_err, reason = "the buffer goes back by value in both cases")]
    pub fn wait(self) -> Result<(Wc, Mr<B>), OpError<B>> {
        let device = self.handle.device.clone();
        device.block_on(self)
    }
}

impl<B: IoBuf> Unpin for StripedOp<B> {}

impl<B: IoBuf> Future for StripedOp<B> {
    type Output = Result<(Wc, Mr<B>), OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(op) = self.op else { return Poll::Pending };
        let polled = self.handle.shared.state.lock().poll_op(op, cx);
        let Poll::Ready((result, buffer)) = polled else { return Poll::Pending };
        self.op = None;
        match buffer.downcast::<Mr<B>>() {
            Ok(buffer) => Poll::Ready(match result {
                Ok(wc) => Ok((wc, *buffer)),
                Err(error) => Err(OpError { error, buffer: *buffer }),
            }),
            Err(_) => unreachable!("the operation was made with an Mr<B>"),
        }
    }
}

impl<B: IoBuf> Drop for StripedOp<B> {
    fn drop(&mut self) {
        if let Some(op) = self.op {
            let dropped = self.handle.shared.state.lock().detach(op);
            drop(dropped);
        }
    }
}
