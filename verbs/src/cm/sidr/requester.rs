//! SIDR request that is repeated until its reply arrives.

use super::message::SidrInfo;
use crate::cm::{CmEvent, CmEventKind, ConnId};
use crate::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use uiw_datagram::sidr::{LEN, Reply, Status};
use uiw_stream::Time;

/// Number of requests of one transaction.
const REQUESTS: u32 = 8;
/// Time until the first repetition. It doubles with each repetition.
const FIRST_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum time between two repetitions.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) struct Requester {
    id: ConnId,
    peer: SocketAddr,
    number: u64,
    request: Box<[u8; LEN]>,
    sent: u32,
    timeout: Duration,
    deadline: Time,
    over: bool,
}

/// Action after a timer has expired.
pub(super) enum DueAction<'a> {
    /// The timer was stale.
    Nothing,
    /// Send the request, and set a timer for this time.
    Request { request: &'a [u8; LEN], peer: SocketAddr, next: Time },
    /// Give up, because no request was answered.
    GivenUp(CmEvent),
}

impl Requester {
    pub(super) fn new(id: ConnId, peer: SocketAddr, number: u64, request: [u8; LEN]) -> Self {
        Self {
            id,
            peer,
            number,
            request: Box::new(request),
            sent: 0,
            timeout: FIRST_TIMEOUT,
            deadline: Time::default(),
            over: false,
        }
    }

    /// Returns whether no reply is expected any more.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn on_timer(&mut self, now: Time) -> DueAction<'_> {
        if self.over || now < self.deadline {
            return DueAction::Nothing;
        }
        if self.sent == REQUESTS {
            let error =
                Error::TimedOut { peer: self.peer, awaits_reply: false, after: total_timeout() };
            return DueAction::GivenUp(self.end(CmEventKind::Failed(error)));
        }
        self.sent += 1;
        self.deadline = now.after(self.timeout);
        self.timeout = (self.timeout * 2).min(LONGEST_TIMEOUT);
        DueAction::Request { request: &self.request, peer: self.peer, next: self.deadline }
    }

    /// Returns the event for a received datagram.
    pub(super) fn on_reply(
        &mut self,
        (local, from): (SocketAddr, SocketAddr),
        datagram: &[u8],
    ) -> Option<CmEvent> {
        let reply = match Reply::parse(datagram) {
            Ok(reply) => reply,
            Err(error) => {
                tracing::debug!(peer = %from, %error, "a SIDR reply is dropped");
                return None;
            }
        };
        // Datagrams of other senders and late replies are ignored. Only address and port are
        // compared, because the program's address may have a flow label or no scope.
        let is_peer = (from.ip(), from.port()) == (self.peer.ip(), self.peer.port());
        if !is_peer || reply.transaction != self.number || self.over {
            return None;
        }
        let private_data = reply.private_data.to_vec();
        Some(self.end(match reply.status {
            Status::Valid => {
                let (qpn, qkey) = (reply.qpn.raw(), reply.qkey);
                CmEventKind::SidrResolved(SidrInfo { local, peer: from, qpn, qkey, private_data })
            }
            Status::NoQp => CmEventKind::Failed(Error::NoQueuePair { peer: from, private_data }),
            Status::Rejected => CmEventKind::Failed(Error::Rejected {
                peer: from,
                private_data,
                peer_ird_ord: None,
                markers_asked: false,
            }),
        }))
    }

    fn end(&mut self, kind: CmEventKind) -> CmEvent {
        self.over = true;
        CmEvent { id: self.id, kind }
    }
}

/// Returns the time from the first request until the last one is given up.
fn total_timeout() -> Duration {
    (0..REQUESTS).map(|sent| (FIRST_TIMEOUT * (1 << sent)).min(LONGEST_TIMEOUT)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_datagram::Qpn;

    #[test]
    fn negative_replies_told_apart() {
        let (local, peer) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.2:2".parse().unwrap());
        let error_of = |status| {
            let reply = Reply {
                transaction: 7,
                status,
                qpn: Qpn::from_raw(0),
                qkey: 0,
                private_data: b"no",
            };
            let mut requester = Requester::new(ConnId(1), peer, 7, [0; LEN]);
            match requester.on_reply((local, peer), &reply.emit().unwrap()).unwrap().kind {
                CmEventKind::Failed(error) => error,
                other => panic!("{other:?}"),
            }
        };
        assert!(
            matches!(error_of(Status::Rejected), Error::Rejected { private_data, .. } if private_data == b"no")
        );
        assert!(
            matches!(error_of(Status::NoQp), Error::NoQueuePair { private_data, .. } if private_data == b"no")
        );
    }
}
