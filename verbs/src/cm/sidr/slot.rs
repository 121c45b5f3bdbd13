//! Sockets of a SIDR responder or requester, served by a shard.

use super::requester::{DueAction, Requester};
use super::responder::{Outcome, Responder};
use crate::cm::CmChannel;
use crate::driver::{Driver, Services};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_datagram::sidr::LEN;
use uiw_llp::{DATAGRAM_BUFFER, DatagramSocket, Outgoing, Token};
use uiw_stream::Time;

/// Maximum number of receive calls per socket and event. A call receives one datagram, or several
/// of one sender.
const READS: usize = 16;

pub(crate) struct SidrSlot {
    pub(super) sockets: Vec<Box<dyn DatagramSocket>>,
    pub(super) channel: Arc<CmChannel>,
    pub(super) role: Role,
}

pub(super) enum Role {
    Responder(Responder),
    Requester(Requester),
}

impl SidrSlot {
    /// Receives datagrams. The number is limited, so that a flood does not keep the shard busy; the
    /// stack reports the socket again.
    pub(crate) fn on_event(&mut self, services: &mut Services) {
        let Some(driver) = services.driver.upgrade() else { return };
        let mut buffer = vec![0; DATAGRAM_BUFFER];
        let mut incoming = Vec::new();
        for at in 0..self.sockets.len() {
            for _ in 0..READS {
                let Some(socket) = self.sockets.get_mut(at) else { return };
                incoming.clear();
                let local = socket.local_addr();
                if socket.recv(&mut buffer, &mut incoming).is_err() {
                    break;
                }
                for run in incoming.drain(..) {
                    for bytes in run.each() {
                        self.on_datagram((local, run.peer), &buffer[bytes], &driver, services);
                    }
                }
                if self.is_over() {
                    // The handle keeps the token, and the stack reports no more events for it.
                    self.sockets.clear();
                }
            }
        }
    }

    fn on_datagram(
        &mut self,
        ends: (SocketAddr, SocketAddr),
        datagram: &[u8],
        driver: &Arc<Driver>,
        services: &mut Services,
    ) {
        let event = match &mut self.role {
            Role::Responder(responder) => {
                match responder.on_request(ends, datagram, driver, services) {
                    Outcome::Nothing => None,
                    Outcome::Asked(event) => Some(event),
                    Outcome::Answered(reply) => {
                        send(&mut self.sockets, ends, &reply[..]);
                        None
                    }
                }
            }
            Role::Requester(requester) => requester.on_reply(ends, datagram),
        };
        if let Some(event) = event {
            self.channel.push(event, &mut services.wakes);
        }
    }

    /// Repeats a request or gives it up.
    pub(crate) fn on_timer(&mut self, token: Token, services: &mut Services) {
        let Role::Requester(requester) = &mut self.role else { return };
        match requester.on_timer(services.now) {
            DueAction::Nothing => {}
            DueAction::Request { request, peer, next } => {
                services.timers.add(next, token);
                if let Some(local) = self.sockets.first().map(|socket| socket.local_addr()) {
                    send(&mut self.sockets, (local, peer), request);
                }
            }
            DueAction::GivenUp(event) => self.channel.push(event, &mut services.wakes),
        }
    }

    /// Sends the reply on which the application has decided.
    pub(super) fn decide(
        &mut self,
        ends: (SocketAddr, SocketAddr),
        number: u64,
        reply: &[u8; LEN],
        now: Time,
    ) {
        if let Role::Responder(responder) = &mut self.role {
            responder.decide(ends.1, number, reply, now);
            send(&mut self.sockets, ends, reply);
        }
    }

    fn is_over(&self) -> bool {
        matches!(&self.role, Role::Requester(requester) if requester.is_over())
    }
}

/// Sends one datagram from `local` to `peer`. Errors are ignored, because the protocol repeats lost
/// datagrams.
fn send(
    sockets: &mut [Box<dyn DatagramSocket>],
    (local, peer): (SocketAddr, SocketAddr),
    datagram: &[u8],
) {
    let Some(socket) = sockets.iter_mut().find(|socket| socket.local_addr() == local) else {
        return;
    };
    if let Err(error) = socket.send(datagram, &[Outgoing::new(peer, datagram.len())]) {
        tracing::debug!(%error, %peer, "a SIDR message cannot be sent");
    }
}
