//! Datagram rsockets, with rdma-core's wire protocol.
//!
//! ```text
//!   socket     one socket: state, lock, waiting threads; its addresses
//!   transfer   sending and receiving ─► peers: the way to each ─► endpoint: UD queue pairs and their memory
//!   exchange   what comes over UDP: queue pair numbers, and messages of peers that have not learnt ours
//!   watch      the thread that waits for that
//!   options    socket options
//!   wire       the two headers
//! ```
//!
//! The descriptor is a UDP socket with the socket's address. The first message to a peer goes over
//! UDP, with the number of the sender's queue pair in front; the peer answers with its own. From
//! then on messages go by UD, with the address of the socket in front. Both ways a message is
//! received once or not at all, in any order.
//!
//! One completion queue and one shared receive queue serve a socket, whatever the number of its
//! queue pairs: messages that a program does not read fill one queue, and further ones are dropped
//! by the engine. Receives hold the longest message that UD has, because a longer one would end the
//! queue pair. `watch` waits for nothing under a socket's lock, and handles 64 packets of a socket
//! before others have their turn.

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
