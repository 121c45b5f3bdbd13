//! The safe API: buffers go in and come back with the completion, and memory that a peer can reach is a type of its own.
//!
//! Everything here is written on the raw layer. The types are asynchronous and need no runtime; [`crate::blocking`] has the same
//! names for programs without one.

mod buf;
mod byte_stream;
#[cfg(feature = "bytes")]
mod bytes;
mod completions;
mod connection;
mod dispatcher;
mod handshakes;
mod listener;
mod message;
mod op;
mod settings;
mod shared;

pub use buf::{IoBuf, IoBufMut, Mr, RegisterError};
pub use byte_stream::ByteStream;
pub use connection::Connection;
pub use handshakes::AcceptFailure;
pub use listener::{Incoming, Listener};
pub use message::Message;
pub use op::{Op, OpError, WcError};
pub use settings::ConnectionConfig;
pub use shared::{BoundWindow, SharedMr};
