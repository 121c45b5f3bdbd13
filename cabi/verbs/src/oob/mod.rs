//! Out-of-band connected queue pairs: programs that exchange GID, QPN and PSN by ways of their own
//! and call `ibv_modify_qp` with INIT, RTR, RTS.
//!
//! A queue pair number is a TCP port and a slot, a GID is an address; so both ends can derive the
//! other's socket address. The end with the smaller number connects (the smaller GID, where numbers
//! are equal); the other one listens and, if no connection came within a second, connects as well,
//! for networks that allow one direction only. MPA private data of both ends names the two queue
//! pairs (`pair_info`); a connection is taken only when both agree. `ibv_modify_qp` does not block:
//! it enqueues requests for a thread of its own (`worker`).

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
