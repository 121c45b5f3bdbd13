//! Packets received over UDP: the queue pair numbers of peers, and messages of peers that do not
//! know ours yet.

use crate::datagram::endpoint::Endpoint;
use crate::datagram::socket::{Datagram, Message, State, peer_key};
use crate::datagram::wire::{ExchangeHeader, MAX_MESSAGE, Operation};
use crate::sys;
use std::net::SocketAddr;
use uiw_cabi_core::errno::Errno;
use uiw_datagram::Qpn;

/// Maximum number of packets that are handled before other sockets are served.
const TURN: usize = 64;

impl Datagram {
    /// Handles packets that were received over UDP, up to the limit of one turn.
    pub(super) fn process_udp(&self) {
        // The buffer has one byte more than the longest message, so that a longer packet is not
        // accepted as a truncated one.
        let mut packet = [0; MAX_MESSAGE + 1];
        let mut state = self.lock();
        let mut is_changed = false;
        for _ in 0..TURN {
            let Ok(udp) = state.udp() else { break };
            match sys::receive_from(udp, &mut packet) {
                Ok((len, _)) if len > MAX_MESSAGE => {}
                Ok((len, from)) => is_changed |= self.take(&mut state, &packet[..len], from),
                Err(Errno::AGAIN) => break,
                // A connected socket has received an ICMP error for an earlier packet.
                Err(errno) => {
                    tracing::debug!(error = %errno, "UDP reports an error");
                    state.error = Some(errno);
                    is_changed = true;
                }
            }
        }
        drop(state);
        if is_changed {
            self.wake(None);
        }
    }

    /// Discards reports that the program has requested from the system (IP_RECVERR,
    /// SO_TIMESTAMPING). rsockets have no call that returns them.
    pub(super) fn discard_reports(&self) {
        let state = self.lock();
        if let Ok(udp) = state.udp() {
            for _ in 0..TURN {
                if sys::discard_report(udp).is_err() {
                    break;
                }
            }
        }
    }

    /// Handles one packet. Returns whether it contains a message for the program.
    fn take(&self, state: &mut State, packet: &[u8], from: SocketAddr) -> bool {
        let from = peer_key(from);
        let (header, message) = match ExchangeHeader::parse(packet) {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::trace!(%from, %error, "a packet does not come from an rsocket");
                return false;
            }
        };
        let qpn = Qpn::from_raw(header.qpn);
        if header.address.is_ipv4() != from.is_ipv4() || qpn.port() == 0 || qpn == Qpn::MULTICAST {
            tracing::trace!(%from, %qpn, "a packet contains no queue pair");
            return false;
        }
        if header.operation == Operation::Control {
            // This has no effect if nothing was sent to the peer, because its queue pair number is
            // not needed in that case.
            state.peers.learn(from, qpn.raw());
            return false;
        }
        let route = match self.route(state, from) {
            Ok(route) => route,
            Err(error) => {
                tracing::debug!(%from, %error, "no route leads to the sender of a datagram");
                return false;
            }
        };
        state.peers.learn(from, qpn.raw());
        // The answer is not longer than the packet. If it is lost, the next message of the peer is
        // answered again.
        if let Err(error) = self.send_over_udp(state, Operation::Control, route, from, &[]) {
            tracing::debug!(%from, %error, "the number of the queue pair cannot be sent");
        }
        let most = state.endpoint.as_ref().map_or(0, Endpoint::receives);
        if state.shut[0] || state.messages.len() >= most {
            return false;
        }
        state.messages.push_back(Message::Whole { from, bytes: message.to_vec() });
        true
    }
}
