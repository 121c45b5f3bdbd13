//! Support for `librspreload.so` beyond the API of rsockets: TCP sockets of a program become
//! rsockets.
//!
//! ```text
//!   socket ─► Plain: the kernel's socket, on the port of rsockets ─► listen, accept: by the kernel
//!     connect ─────────────┐                      accepted, and used for the first time ┐
//!                          └──────► adopt: MPA over the TCP connection that is there ◄──┘
//! ```
//!
//! A UDP socket that `preload_config` selects becomes a datagram rsocket immediately (`datagrams`).
//!
//! The program's descriptor number stays the same. Until a connection is used, only a socket of the
//! kernel is behind the number, and a fork passes it to the child. Listeners therefore work in
//! children, and an accepted connection becomes an rsocket in the process that uses it first.
//!
//! * While a socket is an rsocket, a placeholder that reads as closed is behind its number, so a
//!   call that is not replaced reads no bytes of MPA. Each look-up checks that the placeholder or
//!   the program's socket is still behind the number (`descriptor_sockets`), because a program can
//!   close a number with a call that this library does not see.
//! * The initiator starts when TCP is connected. The acceptor answers when its program uses the
//!   connection. Until then the program's bytes are stored, like those in the kernel's send buffer.
//!   The startup of the initiator has no time-out, because a TCP connection that no process accepts
//!   has none either.
//! * An epoll set belongs to the system until a socket that is or may become an rsocket is added.
//!   A descriptor that is always ready then makes all threads return from the system's wait
//!   (`waiting`).
//! * If a connection fails to become an rsocket, the program gets an rsocket in `Phase::Failed`,
//!   and never gets the kernel's socket back. A refusal after a non-blocking call leads to
//!   `Phase::Refused`: the next call or wait connects the kernel's socket by TCP and gives the
//!   number back to it.
//! * Descriptors of this library have numbers from 512 on if there is room, because some programs
//!   use select(2), and some close a number twice.
//! * A child of `vfork` shares the parent's memory, but closes its own descriptors. Calls that
//!   change the table therefore compare the process first.

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

pub(crate) use adopt::fall_back;
pub(crate) use bitmap::BITMAP;
pub(crate) use descriptor_sockets::{DescriptorSockets, placeholder};
pub(crate) use plain::PlainSocket;
