//! Sending and receiving messages.

use crate::datagram::peers::PeerRoute;
use crate::datagram::socket::{Datagram, Message, State, not_bound_error};
use crate::datagram::wire::{ExchangeHeader, MAX_MESSAGE, MessageHeader, Operation};
use crate::is_exiting;
use crate::sys;
use crate::wait::{self, Limit};
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Received message, of which all bytes or only the first ones were copied to the program.
pub(crate) struct CopiedMessage {
    /// Number of bytes that were copied.
    pub(crate) copied: usize,
    /// Size of the message in bytes.
    pub(crate) len: usize,
    /// Address of the sender, with the port number that the program sees; `None` if reading was
    /// shut down.
    pub(crate) from: Option<SocketAddr>,
}

impl CopiedMessage {
    /// Returns the return value of a receive call with these flags: the size of the message with
    /// MSG_TRUNC, and otherwise the number of bytes that were copied.
    pub(crate) fn returned(&self, flags: c_int) -> isize {
        if flags & libc::MSG_TRUNC != 0 {
            self.len.cast_signed()
        } else {
            self.copied.cast_signed()
        }
    }
}

/// Returns the maximum size in bytes of a message to `peer`. The first message to a peer is sent
/// over UDP, whose header is the longer one.
const fn longest(peer: &IpAddr) -> usize {
    MAX_MESSAGE - ExchangeHeader::len_for(peer)
}

fn too_long() -> Errno {
    Errno(libc::EMSGSIZE).because("the datagram is longer than rdma-core's buffers")
}

impl Datagram {
    fn is_nonblocking(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.lock().flags.status & libc::O_NONBLOCK != 0
    }

    /// Sends a message to `to`, which has the port number that the program sees, or to the
    /// connected peer if `to` is `None`. `parts` are the pieces of the message, which has `len`
    /// bytes.
    ///
    /// # Errors
    /// EDESTADDRREQ without a destination, EMSGSIZE, EPIPE after writing was shut down, EAGAIN,
    /// EOPNOTSUPP for MSG_OOB; OS errors.
    pub(crate) fn send<'a>(
        &self,
        parts: impl Iterator<Item = &'a [u8]>,
        flags: c_int,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno::UNSUPPORTED.because("rsockets have no out-of-band data"));
        }
        let mut message = [0; MAX_MESSAGE];
        let mut at = 0;
        for part in parts {
            let Some(room) = message.get_mut(at..at + part.len()) else {
                return Err(too_long());
            };
            room.copy_from_slice(part);
            at += part.len();
        }
        let message = &message[..at];
        let to = to.map(Self::real).transpose()?;
        let nonblocking = self.is_nonblocking(flags);
        let time = self.lock().send_timeout;
        loop {
            let mut is_full = None;
            let sent = self.complete(nonblocking, time, |state| {
                self.send_once(state, message, to, &mut is_full)
            });
            match is_full {
                // The system's send buffer is full, and no completion reports when it has room
                // again.
                Some(udp) if sent.is_err() && !nonblocking => wait_for_room(udp, time)?,
                Some(_) if sent.is_err() => return Err(Errno::AGAIN),
                _ => return sent.map(|()| message.len()),
            }
        }
    }

    /// Sends the message if there is room. If UDP has no room, stores the socket in `is_full` and
    /// returns an error other than EAGAIN, because the caller would wait for a completion after
    /// EAGAIN.
    fn send_once(
        &self,
        state: &mut State,
        message: &[u8],
        to: Option<SocketAddr>,
        is_full: &mut Option<c_int>,
    ) -> Result<()> {
        let udp = state.udp()?;
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if state.shut[1] {
            return Err(Errno(libc::EPIPE));
        }
        let peer = to.or(state.connected);
        let peer = peer
            .ok_or_else(|| Errno(libc::EDESTADDRREQ).because("the datagram has no destination"))?;
        if message.len() > longest(&peer.ip()) {
            return Err(too_long());
        }
        self.prepare(state)?;
        let route = self.route(state, peer)?;
        let header_len = MessageHeader::len_for(&route.local);
        let State { endpoint: Some(endpoint), peers, port, .. } = state else {
            return Err(not_bound_error());
        };
        let fits = header_len + message.len() <= endpoint.max_payload(route.queue_pair);
        if fits && !endpoint.has_room() {
            return Err(Errno::AGAIN);
        }
        if fits && let Some(qpn) = peers.next_qpn(peer) {
            if *port == 0 {
                *port = sys::address_as_is(udp, false)?.port();
            }
            let header = MessageHeader { from: SocketAddr::new(route.local, *port) }.emit();
            return endpoint.send(
                (route.queue_pair, route.local),
                (peer, qpn),
                header.as_slice(),
                message,
            );
        }
        let sent = self.send_over_udp(state, Operation::Data, route, peer, message);
        if matches!(sent, Err(Errno::AGAIN)) {
            *is_full = Some(udp);
            return Err(Errno(libc::ENOBUFS));
        }
        sent
    }

    /// Sends a message over UDP, after a header with the number of the queue pair.
    ///
    /// # Errors
    /// EAGAIN if the system's send buffer is full; the other OS errors.
    pub(super) fn send_over_udp(
        &self,
        state: &State,
        operation: Operation,
        route: PeerRoute,
        peer: SocketAddr,
        message: &[u8],
    ) -> Result<()> {
        let udp = state.udp()?;
        let Some(endpoint) = &state.endpoint else { return Err(not_bound_error()) };
        let header = ExchangeHeader {
            operation,
            qpn: endpoint.number(route.queue_pair),
            address: route.local,
        };
        let to = address::to_sockaddr(self.in_own_family(peer));
        sys::send_message(udp, [header.emit().as_slice(), message], address::significant_bytes(&to))
    }

    /// Receives a message into `parts`.
    ///
    /// # Errors
    /// EAGAIN; EINVAL for a socket that has no address yet; the errors of the system.
    pub(crate) fn receive(&self, flags: c_int, parts: &mut [&mut [u8]]) -> Result<CopiedMessage> {
        let nonblocking = self.is_nonblocking(flags);
        let time: Option<Duration> = self.lock().receive_timeout;
        self.complete(nonblocking, time, |state| self.receive_once(state, flags, parts))
    }

    fn receive_once(
        &self,
        state: &mut State,
        flags: c_int,
        parts: &mut [&mut [u8]],
    ) -> Result<CopiedMessage> {
        // The end of the process has closed the socket, which a call in progress must not notice.
        if state.udp.is_none() && is_exiting() {
            return Err(Errno::AGAIN);
        }
        state.udp()?;
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        let Some(endpoint) = &state.endpoint else {
            return Err(not_bound_error());
        };
        let Some(message) = state.messages.front() else {
            let end = CopiedMessage { copied: 0, len: 0, from: None };
            return if state.shut[0] { Ok(end) } else { Err(Errno::AGAIN) };
        };
        let (len, from) = match message {
            Message::Placed(arrived) => (arrived.len, arrived.from),
            Message::Whole { bytes, from } => (bytes.len(), *from),
        };
        let mut copied = 0;
        for part in parts {
            let count = part.len().min(len - copied);
            match message {
                Message::Placed(arrived) => endpoint.copy(arrived, copied, &mut part[..count])?,
                Message::Whole { bytes, .. } => {
                    part[..count].copy_from_slice(&bytes[copied..copied + count]);
                }
            }
            copied += count;
        }
        if flags & libc::MSG_PEEK == 0
            && let Some(Message::Placed(arrived)) = state.messages.pop_front()
        {
            endpoint.receive_again(&[arrived.slot]);
        }
        Ok(CopiedMessage { copied, len, from: Some(self.in_own_family(from)) })
    }
}

/// Waits until the system has room for a datagram, for at most `time`.
fn wait_for_room(udp: c_int, time: Option<Duration>) -> Result<()> {
    let mut fds = [libc::pollfd { fd: udp, events: libc::POLLOUT, revents: 0 }];
    let limit = time.map_or_else(Limit::default, Limit::within);
    match wait::poll_system(&mut fds, &limit)? {
        0 => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}
