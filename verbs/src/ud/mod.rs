//! Unreliable datagrams: UD queue pairs on UDP ports (`docs/datagrams.md`).
//!
//! A [`DatagramPort`] is one UDP port at every address of a network device, and the 256 queue pair
//! numbers that name it. It belongs to one shard, and so do its queue pairs: everything of them
//! that touches a socket happens under that shard's lock.
//!
//! The shard has a `PortSlot` for the sockets of a port and an `Endpoint` for each queue pair, so
//! that a doorbell reaches it without a look-up. No lock is added to the shard's. State changes are
//! commands to the shard, so no datagram is under way in them.
//!
//! * **Sending.** `Endpoint::build` copies requests with header and CRC into the shard's `Staging`
//!   and passes up to 256 datagrams to one `DatagramSocket::send`. Requests to one destination are
//!   a run: its header is made once, and the MSN replaced in each datagram. Requests of a run that
//!   name one region look it up and pin it once (`uiw_mem::HeldRegion`). The CRC reads the bytes
//!   before the MSN once for all of them (`uiw_datagram::RunCrc`). Datagrams for which there is no
//!   room stay in the send queue, which is bounded, and are built again when the socket is
//!   writable.
//! * **Receiving.** `receive` reads up to 16 buffers of 64 KiB (UDP_GRO) and ends its turn after
//!   256 datagrams. A datagram whose header differs from the one before in the MSN only needs no
//!   other check than its CRC. Each datagram is copied into the posted receive and completed with
//!   the others of its run, or counted as dropped.

mod address;
mod binding;
mod control;
mod counts;
mod endpoint;
mod own;
mod port;
mod receive;
mod slot;
mod staging;
mod transmit;
mod way;

pub use address::{AddressHandle, Destination};
pub(crate) use control::{destroy, modify};
pub use counts::DatagramCounts;
pub(crate) use endpoint::Endpoint;
pub(crate) use own::OwnSockets;
pub use port::DatagramPort;
pub(crate) use receive::receive;
pub(crate) use slot::PortSlot;
pub(crate) use staging::Staging;
pub(crate) use transmit::{resume, transmit};

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// State that only UD queue pairs have.
pub(crate) struct UdState {
    pub(crate) port: Arc<DatagramPort>,
    pub(crate) qkey: AtomicU32,
}
