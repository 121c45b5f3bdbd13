//! Queue pairs: what the application holds of one, its two queues and its state. The connection behind it is a [`crate::conn::Conn`],
//! owned by the driver.

mod control;
mod handle;
mod recv_queue;
mod ring;
mod send_queue;
mod state;

pub(crate) use handle::{Doorbell, QpInner, RecvSource};
pub use handle::{Path, Qp, QpAttr, QpCap, QpInit};
pub(crate) use recv_queue::{RecvQueue, RecvWqe};
pub(crate) use send_queue::{SendQueue, SqMode, Wqe};
pub use state::QpState;
