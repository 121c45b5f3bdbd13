//! What `librspreload.so` needs beyond the API of rsockets: TCP sockets of a program that become
//! rsockets.
//!
//! ```text
//!   socket ─► Plain: the kernel's socket, on the port of rsockets ─► listen, accept: by the kernel
//!     connect ─────────────┐                      accepted, and used for the first time ┐
//!                          └──────► adopt: MPA over the TCP connection that is there ◄──┘
//! ```
//!
//! A UDP socket that `preload_config` names is a datagram rsocket at once (`datagrams`).
//!
//! The number that the program has stays the same. Before a connection is used nothing but a socket
//! of the kernel is behind it, which a fork gives to the child: listeners work in children, and an
//! accepted connection becomes an rsocket in the process that uses it first.
//!
//! * While a socket is an rsocket, a placeholder that reads as closed is behind its number: a call
//!   that is not replaced finds no bytes of MPA. Each look-up compares the cookie of the socket
//!   that the system has behind the number (`descriptor_sockets`), because a program can close a number by a
//!   call that is not seen.
//! * The initiator begins when TCP is connected; the acceptor answers when its program uses the
//!   connection. Until then the program's bytes are kept, as the kernel's send buffer keeps them.
//!   The initiator's start-up has no time-out, as a TCP connection that no process accepts has
//!   none.
//! * An epoll set is the system's until a socket enters it that is or may become an rsocket.
//!   Threads that are in the system's wait then are brought out by a descriptor that is always
//!   ready (`waiting`).
//! * A connection that fails to become an rsocket gets one in `Phase::Failed`, never the kernel's
//!   socket back. A refusal after a non-blocking call ends in `Phase::Refused`: the next call or
//!   wait connects the kernel's socket by TCP and gives the number back to it.
//! * Descriptors of this library have numbers from 512 on where there is room: programs use
//!   select(2), and close numbers twice.
//! * A child of `vfork` has the parent's memory and closes descriptors of its own: calls that
//!   change the table compare the process first.

mod adopt;
mod bitmap;
mod config;
pub mod connections;
mod datagrams;
mod descriptor_sockets;
mod exec;
pub mod exports;
mod ioctl;
mod plain;
pub(crate) mod process;
mod sendfile;
pub(crate) mod waiting;

use adopt::AdoptionState;
pub(crate) use adopt::fall_back;
pub(crate) use bitmap::BITMAP;
pub(crate) use descriptor_sockets::{DescriptorSockets, placeholder};
pub(crate) use plain::PlainSocket;
