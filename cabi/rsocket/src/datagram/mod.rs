//! Datagram rsockets, with rdma-core's wire protocol.
//!
//! ```text
//!   socket     one socket: state, lock, waiting threads; its addresses
//!   transfer   sending and receiving ─► peers: the route to each ─► endpoint: UD queue pairs and their memory
//!   exchange   packets over UDP: queue pair numbers, and messages of peers that do not know ours yet
//!   watch      the thread that waits for these packets
//!   options    socket options
//!   wire       the two headers
//! ```
//!
//! The descriptor is a UDP socket with the socket's address. The first message to a peer is sent
//! over UDP, after a header with the number of the sender's queue pair. The peer answers with its
//! own number. From then on messages are sent by UD, after a header with the address of the socket.
//! In both cases a message is received once or not at all, in any order.
//!
//! A socket has one completion queue and one shared receive queue for all of its queue pairs.
//! Messages that a program does not read fill this queue, and the engine drops further ones.
//! Receives have the size of the longest UD message, because a longer one would end the queue pair.
//! `watch` never waits while it holds a socket's lock, and handles 64 packets of a socket before it
//! serves others.

mod endpoint;
mod exchange;
mod options;
mod peers;
mod socket;
mod transfer;
mod watch;
pub mod wire;

pub(crate) use options::{option, set_option};
pub(crate) use socket::Datagram;
pub(crate) use transfer::CopiedMessage;
