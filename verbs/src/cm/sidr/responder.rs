//! The requests of a listener's peers, each remembered until none of its repetitions can come any more.

use super::request::SidrRequest;
use crate::cm::{CmEvent, CmEventKind, ConnId, ListenerId};
use crate::driver::{Driver, Services};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::sidr::{LEN, Request};
use uiw_llp::Token;
use uiw_stream::Time;

/// How long a responder remembers a transaction, and how many it remembers.
const REMEMBERED: Duration = Duration::from_secs(30);
const MAX_TRANSACTIONS: usize = 1024;

pub(super) struct Responder {
    listener: ListenerId,
    transactions: VecDeque<Transaction>,
}

struct Transaction {
    peer: SocketAddr,
    number: u64,
    since: Time,
    /// The reply, once the application has decided.
    reply: Option<Box<[u8; LEN]>>,
}

/// What a request leads to.
pub(super) enum Outcome {
    /// It is dropped: malformed, one too many, or a repetition of a request that is not decided yet.
    Nothing,
    /// It is new: the application decides.
    Asked(CmEvent),
    /// It is a repetition: the reply is sent again.
    Answered(Box<[u8; LEN]>),
}

impl Responder {
    pub(super) fn new(listener: ListenerId) -> Self {
        Self { listener, transactions: VecDeque::new() }
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
        while self.transactions.front().is_some_and(|oldest| oldest.since.after(REMEMBERED) <= now) {
            self.transactions.pop_front();
        }
        let number = request.transaction;
        if let Some(known) = self.transaction(peer, number) {
            return known.reply.clone().map_or(Outcome::Nothing, Outcome::Answered);
        }
        if self.transactions.len() >= MAX_TRANSACTIONS {
            tracing::debug!(%peer, "a SIDR request is dropped: too many are remembered");
            return Outcome::Nothing;
        }
        self.transactions.push_back(Transaction { peer, number, since: now, reply: None });
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

    /// Keeps the reply for repetitions of its request.
    pub(super) fn decide(&mut self, peer: SocketAddr, number: u64, reply: &[u8; LEN]) {
        if let Some(known) = self.transaction(peer, number) {
            known.reply = Some(Box::new(*reply));
        }
    }

    fn transaction(&mut self, peer: SocketAddr, number: u64) -> Option<&mut Transaction> {
        self.transactions.iter_mut().find(|known| known.peer == peer && known.number == number)
    }
}
