//! Operations under way.

use crate::buf::{IoBuf, Mr};
use crate::dispatcher::Handle;
use crate::error::{Error, ErrorKind};
use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use uiw_verbs::{Wc, WcStatus, WireReason};

/// Why an operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WcError {
    /// It was posted and completed with an error.
    #[error("{}: {status}{}{}", peer, describe(*reason), name(detail.as_deref()))]
    Completed {
        /// Status of the completion.
        status: WcStatus,
        /// The wire's reason, where there is one.
        reason: Option<WireReason>,
        /// The peer.
        peer: SocketAddr,
        /// Description of a local error: the request or receive, its value, and the limit.
        detail: Option<Arc<str>>,
    },
    /// It could not be posted.
    #[error(transparent)]
    Refused(Arc<Error>),
    /// Nothing came within the time that the caller gave.
    #[error("no message came within {after:?}")]
    TimedOut {
        /// The time.
        after: std::time::Duration,
    },
}

/// As `io::Error` from [`Error`]; a completion with an error is [`std::io::ErrorKind::ConnectionAborted`] where it was flushed, and
/// [`std::io::ErrorKind::Other`] otherwise; [`WcError::TimedOut`] is [`std::io::ErrorKind::TimedOut`].
impl From<WcError> for std::io::Error {
    fn from(error: WcError) -> Self {
        match error {
            WcError::Refused(refused) => Self::new(refused.kind().io_kind(), refused),
            WcError::Completed { status: WcStatus::Flushed, .. } => {
                Self::new(std::io::ErrorKind::ConnectionAborted, error)
            }
            WcError::Completed { .. } => Self::other(error),
            WcError::TimedOut { .. } => Self::new(std::io::ErrorKind::TimedOut, error),
        }
    }
}

impl From<Error> for WcError {
    fn from(error: Error) -> Self {
        Self::Refused(Arc::new(error))
    }
}

impl From<ErrorKind> for WcError {
    fn from(error: ErrorKind) -> Self {
        Error::from(error).into()
    }
}

fn name(detail: Option<&str>) -> String {
    detail.map(|detail| format!(": {detail}")).unwrap_or_default()
}

fn describe(reason: Option<WireReason>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// An operation that failed, with its buffer.
///
/// It converts to [`WcError`] and [`std::io::Error`], so that `?` works where the buffer is not needed.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// use uiw::{RemoteMr, STag};
/// let nowhere = RemoteMr { addr: 0, len: 4, rkey: STag(0x1234_5678) };
/// let buffer = client.as_async().pd().register(vec![0; 4])?;
/// let failed = client.read(buffer, nowhere).wait().unwrap_err();
/// assert!(failed.error.to_string().contains("the peer refused access"));
/// assert_eq!(failed.buffer.into_inner().len(), 4);
/// # Ok(())
/// # }
/// ```
pub struct OpError<B: IoBuf> {
    /// Why.
    pub error: WcError,
    /// The buffer. After a Read that failed, what it holds is unspecified.
    pub buffer: Mr<B>,
}

impl<B: IoBuf> std::fmt::Debug for OpError<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B: IoBuf> std::fmt::Display for OpError<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: IoBuf> std::error::Error for OpError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<B: IoBuf> From<OpError<B>> for WcError {
    fn from(error: OpError<B>) -> Self {
        error.error
    }
}

impl<B: IoBuf> From<OpError<B>> for std::io::Error {
    fn from(error: OpError<B>) -> Self {
        error.error.into()
    }
}

/// What an operation ends with.
type Done<B> = Result<(Wc, Mr<B>), OpError<B>>;

/// An operation under way. It owns its buffer until the completion.
///
/// It is posted when it is made if the send queue has room, otherwise when room has come (back-pressure, first come first served).
/// Dropping it detaches it, posted or not: the request goes on in its turn, and the engine holds the buffer until it completes or the
/// connection ends. RDMA cannot cancel single requests.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// let pd = client.as_async().pd();
/// // Both are under way before one is waited for.
/// let operations = ["one", "two"].map(|text| pd.register(text).map(|memory| client.send(memory)));
/// for operation in operations {
///     operation?.wait()?;
/// }
/// assert_eq!(server.recv()?.as_deref(), Some(&b"one"[..]));
/// # Ok(())
/// # }
/// ```
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
    pub(crate) fn new(dispatcher: Arc<Handle>, ticket: u64) -> Self {
        Self { dispatcher, ticket: Some(ticket), buffer: PhantomData }
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// [`OpError`], with the buffer.
    #[expect(clippy::result_large_err, reason = "the buffer goes back by value in both cases")]
    pub fn wait(self) -> Result<(Wc, Mr<B>), OpError<B>> {
        let device = self.dispatcher.device().clone();
        device.block_on(self)
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
            Ok(buffer) => Poll::Ready(match result {
                Ok(wc) => Ok((wc, *buffer)),
                Err(error) => Err(OpError { error, buffer: *buffer }),
            }),
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
