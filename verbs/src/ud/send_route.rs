//! Route of datagrams to one destination.

use super::Destination;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use uiw_datagram::Header;
use uiw_llp::Outgoing;

/// Properties that depend on the destination. They are determined once for consecutive requests,
/// and kept for the next batch.
pub(super) struct SendRoute {
    pub(super) to: Destination,
    /// Q_Key of the sending queue pair.
    pub(super) own_qkey: u32,
    /// Index of the socket in the port.
    pub(super) socket: usize,
    /// Local address of the socket.
    pub(super) local: IpAddr,
    pub(super) peer: SocketAddr,
    /// True if the destination is a group.
    pub(super) is_group: bool,
    /// True if the destination is a queue pair of the same device, or a group.
    pub(super) same_device: bool,
    /// Header of datagrams on this route, and its bytes. The next datagram usually differs only in
    /// the MSN.
    pub(super) header: Header,
    pub(super) bytes: [u8; Header::LEN],
}

impl SendRoute {
    /// Returns whether the header is still valid for the queue pair.
    pub(super) fn is_of(&self, epoch: u32, own_qkey: u32) -> bool {
        (self.header.epoch, self.own_qkey) == (epoch, own_qkey)
    }

    /// Returns the bytes of the header, except for the MSN.
    #[inline]
    pub(super) fn header(&mut self, solicited: bool, immediate: Option<u32>) -> &[u8; Header::LEN] {
        if (self.header.solicited, self.header.immediate) != (solicited, immediate) {
            self.header = Header { solicited, immediate, ..self.header };
            self.bytes = self.header.emit();
        }
        &self.bytes
    }

    /// Returns a datagram of `len` bytes on this route.
    pub(super) fn outgoing(&self, len: usize) -> Outgoing {
        Outgoing {
            hop_limit: NonZeroU8::new(self.to.ah.hop_limit()),
            ..Outgoing::new(self.peer, len)
        }
    }
}
