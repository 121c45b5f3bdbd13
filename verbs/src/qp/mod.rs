//! Queue pairs.
//!
//! A [`Qp`] is what the application holds: its two queues and its state. The stream behind it is a [`Conn`], owned by the
//! driver; [`tx`] turns requests into FPDUs, [`rx`] turns FPDUs into placed memory and completions. Those two files know
//! every layer; nothing else does.

mod acks;
mod answers;
mod conn;
mod handle;
mod in_place;
mod inbox;
mod look;
mod message;
mod next_message;
mod out_queue;
mod peer;
mod read_queue;
mod recv_queue;
mod ring;
mod rx;
mod send_queue;
mod state;
mod teardown;
mod tx;
#[cfg(test)]
mod wrap;

pub(crate) use conn::{Conn, Phase};
pub(crate) use handle::{Doorbell, QpInner};
pub use handle::{Path, Qp, QpAttr, QpCap, QpInit};
pub(crate) use out_queue::SendError;
pub(crate) use peer::Peer;
pub(crate) use recv_queue::{RecvQueue, RecvWqe};
pub(crate) use send_queue::SqMode;
pub use state::QpState;
pub(crate) use teardown::Down;
