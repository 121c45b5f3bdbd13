//! What `librspreload.so` needs beyond the API of rsockets: TCP sockets of a program that become rsockets.
//!
//! ```text
//!   socket ─► Plain: the kernel's socket, on the port of rsockets ─► listen, accept: by the kernel
//!     connect ─────────────┐                      accepted, and used for the first time ┐
//!                          └──────► adopt: MPA over the TCP connection that is there ◄──┘
//! ```
//!
//! A UDP socket that `preload_config` names is a datagram rsocket at once (`datagrams`).
//!
//! The number that the program has stays the same. Before a connection is used nothing but a socket of the kernel is behind it, which a
//! fork gives to the child: listeners work in children, and an accepted connection becomes an rsocket in the process that uses it first.

mod adopt;
mod behind;
mod bitmap;
mod config;
pub mod connections;
mod datagrams;
mod exec;
pub mod exports;
mod ioctl;
mod plain;
pub(crate) mod process;
mod sendfile;
pub(crate) mod waiting;

use adopt::Adopted;
pub(crate) use adopt::fall_back;
pub(crate) use behind::{Behind, placeholder};
pub(crate) use bitmap::BITMAP;
pub(crate) use plain::Plain;
