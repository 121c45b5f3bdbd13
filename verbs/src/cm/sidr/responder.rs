//! Requests of a SIDR listener's peers. Each is remembered until it can no longer be repeated.

use super::request::SidrRequest;
use crate::cm::{CmEvent, CmEventKind, ConnId, ListenerId};
use crate::driver::{Driver, Services};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::sidr::{LEN, Request};
use uiw_llp::Token;
use uiw_stream::Time;

/// Time for which a responder remembers a reply.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Maximum number of remembered replies. If there are more, the oldest is forgotten, and a
/// repetition of its request counts as a new request.
const MAX_REPLIES: usize = 1024;
/// Maximum number of undecided requests.
const MAX_PENDING: usize = 1024;
/// Maximum number of undecided requests per host.
const MAX_PENDING_OF_HOST: usize = 128;

pub(super) struct Responder {
    listener: ListenerId,
    /// Undecided requests. Each of them is an event, or an object that the application holds.
    pending: Vec<SidrTransaction>,
    /// Replies, oldest first.
    replies: VecDeque<SentReply>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct SidrTransaction {
    peer: SocketAddr,
    number: u64,
}

struct SentReply {
    transaction: SidrTransaction,
    since: Time,
    reply: Box<[u8; LEN]>,
}

/// Action for a received request.
pub(super) enum Outcome {
    /// Dropped, because it is malformed, exceeds a limit, or repeats an undecided request.
    Nothing,
    /// Passed to the application, because it is new.
    Asked(CmEvent),
    /// Answered with the same reply again, because it is a repetition.
    Answered(Box<[u8; LEN]>),
}

/// Returns the host of an address. For IPv6 it is the /64, because a host may have any address in
/// it.
fn host(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Responder {
    pub(super) fn new(listener: ListenerId) -> Self {
        Self { listener, pending: Vec::new(), replies: VecDeque::new() }
    }

    pub(super) fn on_request(
        &mut self,
        (local, peer): (SocketAddr, SocketAddr),
        datagram: &[u8],
        driver: &Arc<Driver>,
        services: &Services,
    ) -> Outcome {
        let request = match Request::parse(datagram) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%peer, %error, "a SIDR request is dropped");
                return Outcome::Nothing;
            }
        };
        if peer.port() == 0 || peer.ip().is_multicast() || peer.ip().is_unspecified() {
            return Outcome::Nothing;
        }
        let now = services.now;
        self.forget(now);
        let number = request.transaction;
        let transaction = SidrTransaction { peer, number };
        if let Some(known) = self.replies.iter().find(|known| known.transaction == transaction) {
            return Outcome::Answered(known.reply.clone());
        }
        if self.pending.contains(&transaction) {
            return Outcome::Nothing;
        }
        let of_host =
            self.pending.iter().filter(|other| host(other.peer.ip()) == host(peer.ip())).count();
        if self.pending.len() >= MAX_PENDING || of_host >= MAX_PENDING_OF_HOST {
            tracing::debug!(%peer, "a SIDR request is dropped: too many wait for a decision");
            return Outcome::Nothing;
        }
        self.pending.push(transaction);
        let request = SidrRequest {
            driver: Arc::clone(driver),
            listener: Token(self.listener.0),
            id: ConnId(services.shared.next_stream().0),
            local,
            peer,
            number,
            private_data: request.private_data.to_vec(),
            decided: false,
        };
        Outcome::Asked(CmEvent { id: request.id, kind: CmEventKind::SidrRequest(request) })
    }

    /// Remembers a reply, for repetitions of its request.
    pub(super) fn decide(&mut self, peer: SocketAddr, number: u64, reply: &[u8; LEN], now: Time) {
        self.forget(now);
        let transaction = SidrTransaction { peer, number };
        self.pending.retain(|other| *other != transaction);
        if self.replies.len() >= MAX_REPLIES {
            self.replies.pop_front();
        }
        self.replies.push_back(SentReply { transaction, since: now, reply: Box::new(*reply) });
    }

    /// Forgets replies whose requests can no longer be repeated.
    fn forget(&mut self, now: Time) {
        while self.replies.front().is_some_and(|oldest| oldest.since.after(REMEMBERED) <= now) {
            self.replies.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_counted_by_ipv6_network() {
        let host = |address: &str| host(address.parse().unwrap());
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:0:0:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
    }
}
