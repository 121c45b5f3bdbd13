//! Out-of-band connected queue pairs, for programs that exchange GID, QPN and PSN in their own way
//! and call `ibv_modify_qp` with INIT, RTR and RTS.
//!
//! A queue pair number consists of a TCP port and a slot, and a GID is an IP address, so each end
//! can derive the other's socket address. The end with the smaller number connects (or the one with
//! the smaller GID, if the numbers are equal). The other end listens and, if no connection came
//! within a second, connects as well, for networks that permit connections in only one direction.
//! The MPA private data of both ends names the two queue pairs (`pair_info`), and a connection is
//! used only if both agree. `ibv_modify_qp` does not block: it enqueues requests for a separate
//! thread (`worker`).

mod lid;
mod pair;
mod pair_info;
mod ports;
mod reservation;
mod retry_policy;
mod target;
mod worker;

pub use reservation::QpnReservation;
pub(crate) use retry_policy::RetryPolicy;
pub use retry_policy::{acknowledgement_time, receive_time};
pub(crate) use target::{Target, addresses};
