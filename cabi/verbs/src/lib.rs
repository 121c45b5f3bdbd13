//! libibverbs on uiw: every function that the library exports, as `extern "C"` functions with the
//! names of C.
//!
//! Nothing is exported from this crate. `cabi/ibverbs` is the shared library, whose table of
//! exports refers to these functions. Only the C libraries and the program `uiw` use this crate.
//!
//! * `system` forwards calls to the system's libibverbs if it is used as well (`UIW_SYSTEM_VERBS`).
//!   Rows of `exports.tsv` have one of three routes. Most public functions have an object as their
//!   first argument, and its owner is looked up if the system's library is loaded. Functions of the
//!   private nodes, and those without an object, go to the system's library in that case. It is
//!   opened by its path with RTLD_DEEPBIND when this library is loaded, because providers with
//!   which a program is linked register immediately.
//! * `device_events`: one thread sleeps in a netlink socket without a time-out, and converts
//!   changes of interfaces to asynchronous events and events of rdma_cm ids.
//! * C's object for an event is looked up by the engine's number under a lock, and the event is
//!   counted as delivered under the same lock. Destruction removes the object from that table, and
//!   then waits for acknowledgements.
//! * `oob`: out-of-band connected queue pairs. `ports` reserves numbers (TCP port and slot),
//!   `target` derives the peer's address from the attributes of RTR, `pair_info` is the private
//!   data, and `worker` is the thread that connects, accepts and retries. `ibv_modify_qp` only
//!   enqueues a request for that thread. Each pair has its own lock, so no call waits for the
//!   connection of another queue pair. A queue pair connected to itself uses a looped-back stream
//!   (`StackExtensions::connect_self`) and skips the startup of MPA.
//! * After 32 empty polls, `ibv_poll_cq` yields the processor before it polls, so that it returns a
//!   completion that arrived during the yield.

pub mod ah;
pub mod async_events;
pub mod buf;
mod call_lock;
pub mod channel;
pub mod context;
pub mod cq;
mod cq_ex;
mod cursor;
pub mod device;
pub mod device_events;
pub mod dmabuf;
pub mod fault_handler;
pub mod mapping;
pub mod mr;
pub mod mw;
pub mod oob;
pub mod open;
pub mod pd;
pub mod post;
pub mod qp;
pub mod refused;
pub mod srq;
pub mod strings;
pub mod system;
