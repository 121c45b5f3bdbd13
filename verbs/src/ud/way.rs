//! What follows from the destination of a datagram.

use super::Destination;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use uiw_datagram::Header;
use uiw_llp::Outgoing;

/// Properties of a destination: determined once for consecutive requests to one destination, and
/// kept for the next batch.
pub(super) struct SendRoute {
    pub(super) to: Destination,
    /// The Q_Key of the queue pair itself.
    pub(super) own_qkey: u32,
    /// Index of the socket in the port.
    pub(super) socket: usize,
    /// The address that it has.
    pub(super) local: IpAddr,
    pub(super) peer: SocketAddr,
    /// It leads to a group.
    pub(super) is_group: bool,
    /// It leads to a queue pair of the same device, or to a group.
    pub(super) same_device: bool,
    /// A header of datagrams that take it, and its bytes: those of the next datagram mostly differ
    /// in the MSN alone.
    pub(super) header: Header,
    pub(super) bytes: [u8; Header::LEN],
}

impl SendRoute {
    /// Returns whether its header has what the queue pair has now.
    pub(super) fn is_of(&self, epoch: u32, own_qkey: u32) -> bool {
        (self.header.epoch, self.own_qkey) == (epoch, own_qkey)
    }

    /// The bytes of the header of datagrams that take it, but for their MSN.
    #[inline]
    pub(super) fn header(&mut self, solicited: bool, immediate: Option<u32>) -> &[u8; Header::LEN] {
        if (self.header.solicited, self.header.immediate) != (solicited, immediate) {
            self.header = Header { solicited, immediate, ..self.header };
            self.bytes = self.header.emit();
        }
        &self.bytes
    }

    /// A datagram of `len` bytes that takes it.
    pub(super) fn outgoing(&self, len: usize) -> Outgoing {
        Outgoing { hop_limit: NonZeroU8::new(self.to.ah.hop_limit()), ..Outgoing::new(self.peer, len) }
    }
}
