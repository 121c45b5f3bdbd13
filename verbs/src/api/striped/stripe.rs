//! One stripe: its connection, what is posted on it, and its set-up.

use super::settings::check_acknowledged;
use crate::api::buf::Mr;
use crate::api::completions::{AnyBuffer, Request};
use crate::api::connection::{Connection, Half, Posted};
use crate::api::message::Message;
use crate::api::op::WcError;
use crate::cm::{CloseReason, ConnHandle};
use crate::error::{Error, Result};
use crate::pd::Pd;
use crate::qp::QpState;
use crate::wc::{WcStatus, WireReason};
use crate::wr::{SendFlags, SendOp, Sge};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use uiw_llp::PeerIdentity;
use uiw_striping::Finish;

/// How long a stripe may take to send an Abort.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// What lies in the elements of a request on a stripe.
struct InFlight {
    /// The program's.
    buffer: Option<AnyBuffer>,
    /// The header of a message.
    _header: Option<Mr<Vec<u8>>>,
}

/// A request that a stripe has given back.
pub(super) struct Returned {
    pub(super) number: u64,
    pub(super) finish: Finish<WcError>,
    pub(super) buffer: Option<AnyBuffer>,
}

/// What a stripe reports.
pub(super) enum Event {
    Returned(Returned),
    Message(Message),
    /// Its queue pair is in the error state.
    Died(CloseReason),
    /// A dead one: every request was given back, and every message reported.
    Drained,
    Joined(Joined),
    JoinFailed(Error),
}

/// A set-up that has succeeded.
pub(super) struct Joined {
    /// Of the peer.
    pub(super) private_data: Vec<u8>,
    pub(super) identity: Option<Arc<PeerIdentity>>,
    /// The count of messages in the peer's Request, where this end has accepted.
    pub(super) delivered: Option<u64>,
    /// Completions say that a request is placed.
    pub(super) is_acknowledged: bool,
}

struct Joining {
    future: Pin<Box<dyn Future<Output = Result<Connection>> + Send>>,
    handle: Option<ConnHandle>,
    delivered: Option<u64>,
}

#[derive(Default)]
pub(super) struct Stripe {
    connection: Option<Connection>,
    /// In the order of posting; without a number, a message of the connection itself.
    posted: VecDeque<(Option<u64>, Posted)>,
    joining: Option<Joining>,
    /// The rules consider it dead: what it has is drained.
    is_dying: bool,
    /// No message comes any more.
    is_closed: bool,
    /// It dies when its last message of the connection itself is sent.
    dies_when_sent: bool,
}

impl Stripe {
    pub(super) fn up(connection: Connection) -> Self {
        Self { connection: Some(connection), ..Self::default() }
    }

    /// The next thing that has happened; the waker of `cx` is woken when there is another one.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(joining) = &mut self.joining {
            let Poll::Ready(result) = joining.future.as_mut().poll(cx) else { return Poll::Pending };
            let delivered = joining.delivered;
            self.joining = None;
            return Poll::Ready(self.set_up(result, delivered));
        }
        while let Some((number, posted)) = self.posted.front_mut() {
            let Poll::Ready((result, in_flight)) = Pin::new(posted).poll(cx) else { break };
            let number = *number;
            self.posted.pop_front();
            match number {
                Some(number) => return Poll::Ready(Event::Returned(returned(number, result, in_flight))),
                None if self.dies_when_sent => self.kill(),
                None => {}
            }
        }
        let Some(connection) = &self.connection else {
            return if self.is_dying { self.drained() } else { Poll::Pending };
        };
        if !self.is_closed {
            match connection.poll_message(cx) {
                Poll::Ready(Some(message)) => return Poll::Ready(Event::Message(message)),
                Poll::Ready(None) => {
                    // A connection that brings no message any more has reported its end.
                    let Poll::Ready(reason) = connection.poll_ended(cx) else { return Poll::Pending };
                    self.is_closed = true;
                    return Poll::Ready(Event::Died(reason));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.is_dying && self.posted.is_empty() { self.drained() } else { Poll::Pending }
    }

    fn drained(&mut self) -> Poll<Event> {
        *self = Self::default();
        Poll::Ready(Event::Drained)
    }

    /// A set-up is over.
    fn set_up(&mut self, result: Result<Connection>, delivered: Option<u64>) -> Event {
        match result {
            Ok(connection) => {
                let info = connection.info();
                let (private_data, identity) = (info.private_data.clone(), info.peer_identity.clone());
                let is_acknowledged = check_acknowledged(&connection).is_ok();
                let is_dying = self.is_dying;
                *self = Self { is_dying, ..Self::up(connection) };
                if is_dying {
                    // It was given up meanwhile.
                    self.kill();
                }
                Event::Joined(Joined { private_data, identity, delivered, is_acknowledged })
            }
            Err(error) => {
                *self = Self::default();
                Event::JoinFailed(error)
            }
        }
    }

    /// Waits for a set-up that has begun. `delivered` is from the peer's Request, where there is one.
    pub(super) fn join(&mut self, half: Result<Half>, delivered: Option<u64>) {
        let handle = half.as_ref().ok().and_then(|half| ConnHandle::of(half.qp()).ok());
        let future = Box::pin(async move { half?.established().await });
        *self = Self { joining: Some(Joining { future, handle, delivered }), ..Self::default() };
    }

    /// Puts the queue pair into the error state, or gives the set-up up.
    pub(super) fn kill(&mut self) {
        self.is_dying = true;
        if let Some(joining) = &self.joining {
            // Its future is not dropped: it may be established already, and have received messages.
            if let Some(handle) = &joining.handle {
                let _ = handle.abort();
            }
        } else if let Some(connection) = &self.connection {
            // Refused where it is in that state.
            let _ = connection.qp().modify(QpState::Err);
        }
    }

    /// Closes in order.
    pub(super) fn disconnect(&mut self) {
        self.is_dying = true;
        if self.connection.as_ref().is_none_or(|connection| connection.qp().disconnect().is_err()) {
            self.kill();
        }
    }

    /// Sends a message of the connection itself.
    pub(super) fn send_control(&mut self, pd: &Pd, header: Vec<u8>) {
        // Without a key it cannot be sent: the peer finds the end by itself.
        let Ok(header) = pd.register(header) else { return };
        self.post(None, SendOp::Send, SendFlags::empty(), None, None, Some(header));
    }

    /// Dies when what was sent last has arrived, or soon.
    pub(super) fn die_when_sent(&mut self) {
        self.is_dying = true;
        self.dies_when_sent = true;
        if let Some(connection) = &self.connection {
            connection.qp().limit_lifetime(ABORT_TIMEOUT);
        }
        if self.posted.back().is_none_or(|(number, _)| number.is_some()) {
            self.kill();
        }
    }

    /// Posts a request: of the program with its number, or of the connection itself.
    pub(super) fn post(
        &mut self,
        number: Option<u64>,
        op: SendOp,
        flags: SendFlags,
        sge: Option<Sge>,
        buffer: Option<AnyBuffer>,
        header: Option<Mr<Vec<u8>>>,
    ) {
        let Some(connection) = &self.connection else { return };
        let header_sge = header.as_ref().and_then(|header| header.sge().ok());
        let sges = header_sge.into_iter().chain(sge).collect();
        let in_flight = Box::new(InFlight { buffer, _header: header });
        self.posted.push_back((number, connection.post(Request { op, sges, flags }, in_flight)));
    }
}

fn returned(
    number: u64,
    result: std::result::Result<crate::wc::Wc, WcError>,
    in_flight: AnyBuffer,
) -> Returned {
    let finish = match result {
        Ok(_) => Finish::Placed,
        Err(error) if says_nothing(&error) => Finish::Unknown,
        Err(error) => Finish::Failed(error),
    };
    let buffer = match in_flight.downcast::<InFlight>() {
        Ok(in_flight) => in_flight.buffer,
        Err(_) => unreachable!("requests of stripes have these buffers"),
    };
    Returned { number, finish, buffer }
}

/// Whether the error is about the stream, and not about the request: this then is unknown.
fn says_nothing(error: &WcError) -> bool {
    match error {
        WcError::Completed { status, reason, .. } => match status {
            WcStatus::Flushed | WcStatus::RetryExceeded | WcStatus::Fatal | WcStatus::RemoteAborted => true,
            // The peer has put its queue pair into the error state.
            WcStatus::RemoteOperation => reason.is_some_and(is_local_error_of_peer),
            _ => false,
        },
        // The queue pair was in the error state.
        WcError::Refused(error) => matches!(**error, Error::State { .. } | Error::NotConnected),
        WcError::TimedOut { .. } => false,
    }
}

/// A Terminate with "local catastrophic error" (RFC 5040 section 4.8): layer RDMAP, type 0, code 0.
fn is_local_error_of_peer(reason: WireReason) -> bool {
    reason.from_peer && (reason.layer, reason.etype) == (0, 0)
}
