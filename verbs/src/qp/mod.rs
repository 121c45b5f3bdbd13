//! Queue pairs: the handle of the application, the two queues, and the state. The connection of a
//! queue pair is a [`crate::conn::Conn`], which its shard owns.

mod attributes;
mod control;
mod handle;
mod inner;
mod local_errors;
mod local_log;
mod location;
mod long_messages;
mod memory;
mod posting;
mod recv_queue;
mod ring;
mod send_queue;
mod state;

pub use attributes::{PathInfo, QpAttr, QpCap, QpInit};
pub(crate) use control::{limit_lifetime, renew_close_deadline};
pub use handle::Qp;
pub(crate) use inner::{QpInner, Receives, RecvSource};
pub(crate) use local_errors::{LocalCause, LocalDetail, LogLimit};
pub(crate) use location::ConnLocation;
pub(crate) use long_messages::LongMessages;
pub(crate) use memory::{CrcAppender, Gathered};
pub use posting::Doorbell;
pub(crate) use recv_queue::{RecvQueue, RecvWqe};
pub(crate) use send_queue::{SendQueue, SqMode, Wqe, WqeState};
pub use state::QpState;
