//! UD side of datagram rsockets: a queue pair at each network device that is used, and the memory
//! that these queue pairs share.

use crate::buffer::Buffer;
use crate::datagram::wire::{MAX_MESSAGE, MessageHeader};
use crate::link::MAX_BATCHES;
use crate::settings::Sizes;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use uiw_cabi_core::abi::cm::RDMA_UDP_QKEY;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::device;
use uiw_cabi_verbs::oob::QpnReservation;
use uiw_datagram::{Grh, MAX_PAYLOAD};
use uiw_verbs::{
    Access, AddressHandle, Cq, CqConfig, Destination, Device, Pd, Qp, QpCap, QpInit, QpState,
    RecvWr, SendFlags, SendOp, SendWr, Srq, SrqAttr, Wc, WcStatus,
};

/// Size of a receive in bytes. No sender can send a longer message, because a message that does not
/// fit ends the queue pair.
const RECEIVE: u32 = (Grh::LEN + MAX_PAYLOAD) as u32;
/// Size of a message in the send queue, in bytes.
const SEND: u32 = MAX_MESSAGE as u32;
/// Number of buffer bytes for each message: rdma-core divides SO_RCVBUF and SO_SNDBUF by this
/// number.
const SHARE: u32 = MAX_MESSAGE as u32;
/// Marks the completion of a receive. The other bits contain the slot.
const IS_RECEIVE: u64 = 1 << 63;
/// Number of completions that are handled before receives are posted again.
const BATCH: usize = 64;
/// Maximum number of network devices that a socket can use.
const MAX_QUEUE_PAIRS: usize = 64;

/// Queue pair. It is dropped before its number is released.
struct QueuePair {
    qp: Qp,
    number: QpnReservation,
    /// Name of the network device.
    netdev: String,
    index: u32,
    /// Addresses to which the queue pair is known to be bound.
    addresses: Vec<IpAddr>,
}

/// Received message.
pub(super) struct ReceivedDatagram {
    pub(super) slot: u16,
    /// Offset of the message within the slot.
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) from: SocketAddr,
}

/// Queue pairs and their memory. The fields are dropped in this order, so the memory outlives the
/// queue pairs that use it.
pub(super) struct Endpoint {
    queue_pairs: Vec<QueuePair>,
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    pd: Pd,
    device: Device,
    received: Buffer,
    staged: Buffer,
    /// Slots of the send queue that contain no message.
    free: Vec<u16>,
    sends: u16,
    receives: u16,
}

/// Returns the number of messages that a buffer of `bytes` holds, up to `asked`.
fn depth(asked: u16, bytes: u32) -> u16 {
    asked.min(u16::try_from(bytes / SHARE).unwrap_or(u16::MAX)).max(1)
}

impl Endpoint {
    /// Creates an endpoint without queue pairs.
    ///
    /// # Errors
    /// ENOMEM, EMFILE and other errors of the engine.
    pub(super) fn new(sizes: &Sizes) -> Result<Self> {
        let device = engine::get()?;
        let sizes = sizes.bounded();
        let (sends, receives) =
            (depth(sizes.sends, sizes.sent), depth(sizes.receives, sizes.received));
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(u32::from(sends) + u32::from(receives), CqConfig::default())?;
        let srq = pd.create_srq(SrqAttr { max_wr: receives.into(), max_sge: 1, limit: 0 })?;
        let endpoint = Self {
            received: Buffer::new(&pd, usize::from(receives) * RECEIVE as usize, Access::empty())?,
            staged: Buffer::new(&pd, usize::from(sends) * SEND as usize, Access::empty())?,
            queue_pairs: Vec::new(),
            srq,
            cq,
            pd,
            device,
            free: (0..sends).collect(),
            sends,
            receives,
        };
        endpoint.receive_again(&(0..receives).collect::<Vec<_>>());
        Ok(endpoint)
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Returns the number of messages that can be received before the program reads them.
    pub(super) fn receives(&self) -> usize {
        self.receives.into()
    }

    /// Returns whether another message can be sent.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns whether all messages were passed to UDP.
    pub(super) fn is_flushed(&self) -> bool {
        self.free.len() == usize::from(self.sends)
    }

    /// Returns the index of the queue pair at the device that has `local`. Creates the queue pair
    /// if necessary.
    ///
    /// # Errors
    /// ENODEV if no network device has the address; EADDRINUSE, ENOMEM, EMFILE.
    pub(super) fn queue_pair(&mut self, local: IpAddr) -> Result<usize> {
        if let Some(at) = self.queue_pairs.iter().position(|known| known.addresses.contains(&local))
        {
            return Ok(at);
        }
        let netdev = device::with_address(local)?.netdev()?;
        let known = self.queue_pairs.iter().position(|known| known.netdev == netdev.name);
        let at = match known {
            Some(at) => at,
            None if self.queue_pairs.len() == MAX_QUEUE_PAIRS => {
                return Err(Errno::NOMEM
                    .because("the socket already uses the maximum number of network devices"));
            }
            None => {
                let number = QpnReservation::new(&netdev, &self.device, self.cq.shard())?;
                let qp = self.new_queue_pair(&number)?;
                let (netdev, index) = (netdev.name.clone(), netdev.index);
                self.queue_pairs.push(QueuePair {
                    qp,
                    number,
                    netdev,
                    index,
                    addresses: Vec::new(),
                });
                self.queue_pairs.len() - 1
            }
        };
        let queue_pair = &mut self.queue_pairs[at];
        if let Some(port) = queue_pair.number.datagrams() {
            port.add_address(local, netdev.scope_id(local))?;
        }
        queue_pair.addresses.push(local);
        Ok(at)
    }

    fn new_queue_pair(&self, number: &QpnReservation) -> Result<Qp> {
        let port = number.datagrams().ok_or_else(|| {
            Errno::UNSUPPORTED.because(
                "the device does not support datagrams: its MTU is too small, or TLS is required",
            )
        })?;
        let cap = QpCap {
            max_send_wr: self.sends.into(),
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline: 0,
        };
        let init = QpInit::new(&self.cq, &self.cq)
            .cap(cap)
            .srq(Some(Arc::clone(&self.srq)))
            .signal_all(true);
        let qp = self.pd.create_ud_qp(init.num(number.number()), port)?;
        qp.set_qkey(RDMA_UDP_QKEY)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.modify(state)?;
        }
        Ok(qp)
    }

    /// Returns the number of a queue pair.
    pub(super) fn number(&self, at: usize) -> u32 {
        self.queue_pairs[at].qp.num()
    }

    /// Returns the maximum size of a message, without its header, in a datagram of a queue pair.
    pub(super) fn max_payload(&self, at: usize) -> usize {
        let longest = self.queue_pairs[at].qp.datagram_port().map_or(0, |port| port.max_payload());
        longest.min(MAX_MESSAGE)
    }

    /// Sends a header and a message from `local`, through a queue pair of this socket, to a queue
    /// pair of the peer.
    ///
    /// # Errors
    /// EAGAIN if there is no room; EIO if the request cannot be posted.
    pub(super) fn send(
        &mut self,
        (at, local): (usize, IpAddr),
        (peer, qpn): (SocketAddr, u32),
        header: &[u8],
        message: &[u8],
    ) -> Result<()> {
        let slot = self.free.pop().ok_or(Errno::AGAIN)?;
        let sent = self.post(at, slot, local, (peer, qpn), [header, message]);
        if sent.is_err() {
            self.free.push(slot);
        }
        sent
    }

    fn post(
        &self,
        at: usize,
        slot: u16,
        local: IpAddr,
        (peer, qpn): (SocketAddr, u32),
        [header, message]: [&[u8]; 2],
    ) -> Result<()> {
        let start = u32::from(slot) * SEND;
        self.staged.write(start as usize, header)?;
        self.staged.write(start as usize + header.len(), message)?;
        let len = (header.len() + message.len()) as u32;
        let scope = match peer {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let to = Destination {
            ah: AddressHandle::new(local, peer.ip(), scope),
            qpn,
            qkey: RDMA_UDP_QKEY,
        };
        let request = SendWr {
            wr_id: slot.into(),
            op: SendOp::Datagram { to, imm: None },
            sges: &[self.staged.sge(start..start + len)],
            flags: SendFlags::SIGNALED,
        };
        // SAFETY: `send` took the slot out of `free`. It returns there only with the completion
        // (`process`), or if the request is refused, and nothing writes to it until then. The bytes
        // are in the slot: `send_once` limits them to `max_payload`, at most `SEND`. `staged` stays
        // registered until after `queue_pairs`, an earlier field of `Endpoint`, is dropped.
        unsafe { self.queue_pairs[at].qp.post_send([request]) }.map_err(|error| {
            tracing::debug!(%error, "a datagram cannot be posted");
            Errno::IO
        })
    }

    /// Takes completions, at most [`MAX_BATCHES`] batches, and drives the engine if there are none.
    /// Received messages are passed to `each`. Returns whether there were any completions.
    pub(super) fn process(&mut self, mut each: impl FnMut(ReceivedDatagram)) -> bool {
        let cq = Arc::clone(&self.cq);
        let (mut any, mut failed) = (false, false);
        for _ in 0..MAX_BATCHES {
            let mut again = Vec::new();
            let taken = cq.poll_with(BATCH, |wc| {
                let slot = wc.wr_id as u16;
                let is_success = wc.status == WcStatus::Success;
                failed |= !is_success;
                if wc.wr_id & IS_RECEIVE == 0 {
                    self.free.push(slot);
                } else {
                    match self.arrived(&wc, slot).filter(|_| is_success) {
                        Some(arrived) => each(arrived),
                        None => again.push(slot),
                    }
                }
            });
            self.receive_again(&again);
            any |= taken > 0;
            if taken < BATCH {
                break;
            }
        }
        if failed {
            self.restart_queue_pairs();
        }
        any
    }

    /// Returns the message of a receive, unless it is invalid. The sender's address in its header
    /// must be the address from which the packet came.
    fn arrived(&self, wc: &Wc, slot: u16) -> Option<ReceivedDatagram> {
        let at = usize::from(slot) * RECEIVE as usize;
        let len = (wc.byte_len as usize).checked_sub(Grh::LEN)?;
        let mut bytes = [0; Grh::LEN + 24];
        let front = Grh::LEN + len.min(24);
        self.received.read(at, &mut bytes[..front]).ok()?;
        let route = Grh::parse(bytes.first_chunk()?)?;
        let parsed = MessageHeader::parse(&bytes[Grh::LEN..front]);
        let (header, rest) = parsed
            .inspect_err(
                |error| tracing::trace!(%error, source = %route.source, "a datagram is dropped"),
            )
            .ok()?;
        let header_len = front - Grh::LEN - rest.len();
        if header.from.ip() != route.source {
            tracing::trace!(from = %header.from, source = %route.source, "a datagram with a wrong sender address is dropped");
            return None;
        }
        let from = match header.from {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
                let scope =
                    self.queue_pairs.iter().find(|known| known.qp.num() == wc.qp_num)?.index;
                SocketAddrV6::new(Ipv6Addr::from(v6.ip().octets()), v6.port(), 0, scope).into()
            }
            other => other,
        };
        Some(ReceivedDatagram { slot, start: Grh::LEN + header_len, len: len - header_len, from })
    }

    /// Copies bytes of a message.
    pub(super) fn copy(
        &self,
        arrived: &ReceivedDatagram,
        skip: usize,
        to: &mut [u8],
    ) -> Result<()> {
        self.received.read(usize::from(arrived.slot) * RECEIVE as usize + arrived.start + skip, to)
    }

    /// Posts the receives of these slots.
    pub(super) fn receive_again(&self, slots: &[u16]) {
        let element = |slot: &u16| {
            let at = u32::from(*slot) * RECEIVE;
            self.received.sge(at..at + RECEIVE)
        };
        let sges: Vec<_> = slots.iter().map(element).collect();
        let requests = slots.iter().zip(&sges).map(|(slot, sge)| RecvWr {
            wr_id: IS_RECEIVE | u64::from(*slot),
            sges: std::slice::from_ref(sge),
        });
        // SAFETY: each slot is in one receive at a time: `new` posts it once, and the other callers
        // again only after `process` has taken its completion and its message was read or dropped;
        // nothing else accesses it. `received` stays registered until after `queue_pairs` and
        // `srq`, earlier fields of `Endpoint`, are dropped.
        if let Err(error) = unsafe { self.srq.post_recv(requests) } {
            tracing::warn!(%error, "a datagram rsocket has lost a receive");
        }
    }

    /// Restarts queue pairs that have stopped sending because a message could not be sent. That
    /// message is lost; others can be sent again.
    fn restart_queue_pairs(&self) {
        for QueuePair { qp, netdev, .. } in &self.queue_pairs {
            if qp.state() == QpState::Sqe {
                tracing::debug!(netdev, "a datagram could not be sent");
                if let Err(error) = qp.modify(QpState::Rts) {
                    tracing::warn!(%error, netdev, "a queue pair for datagrams has stopped");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_what_the_buffers_hold() {
        assert_eq!(depth(384, 1 << 17), 64);
        assert_eq!(depth(16, 1 << 20), 16);
        assert_eq!(depth(384, 0), 1);
        assert_eq!(depth(u16::MAX, u32::MAX), u16::MAX);
    }
}
