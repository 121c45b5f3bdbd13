//! Unreliable datagrams: UD queue pairs on UDP ports (`docs/datagrams.md`).
//!
//! A [`DatagramPort`] is one UDP port at every address of a network device, with the 256 queue pair
//! numbers that contain it. The port and its queue pairs belong to one shard, whose lock protects
//! all accesses to their sockets.
//!
//! The shard has a `PortSlot` for the sockets of a port and an `Endpoint` for each queue pair, so
//! that a doorbell needs no lookup. There is no lock besides that of the shard. State changes are
//! commands on the shard, so no datagram is in progress during a change.
//!
//! * **Sending.** `DatagramBuilder::build` copies requests, with header and CRC, into the shard's
//!   `Staging`, and passes up to 256 datagrams to one `DatagramSocket::send`. Consecutive requests
//!   to the same destination are a run: the header is made once, and only the MSN is replaced in
//!   each datagram. If the requests of a run use one region, it is looked up and pinned once
//!   (`uiw_mem::PinnedRegion`). The CRC over the bytes before the MSN is computed once for the run
//!   (`uiw_datagram::RunCrc`). If the socket has no room, the remaining datagrams stay in the send
//!   queue, and are built again when the socket is writable.
//! * **Receiving.** `receive` reads up to 16 buffers of 64 KiB (UDP_GRO) and ends its turn after
//!   256 datagrams. If the header of a datagram differs from the previous one only in the MSN, only
//!   its CRC is checked. Each datagram is copied into a posted receive and completed together with
//!   the others of its run, or counted as dropped.

mod address;
mod binding;
mod control;
mod counts;
mod endpoint;
mod own_sockets;
mod port;
mod receive;
mod send_route;
mod slot;
mod staging;
mod transmit;

pub use address::{AddressHandle, Destination};
pub(crate) use control::{destroy, modify};
pub use counts::DatagramCounts;
pub(crate) use endpoint::Endpoint;
pub(crate) use own_sockets::OwnSockets;
pub use port::DatagramPort;
pub(crate) use receive::receive;
pub(crate) use slot::PortSlot;
pub(crate) use staging::Staging;
pub(crate) use transmit::{resume, transmit};

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Additional state of UD queue pairs.
pub(crate) struct UdState {
    pub(crate) port: Arc<DatagramPort>,
    pub(crate) qkey: AtomicU32,
}
