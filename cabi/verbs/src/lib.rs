//! libibverbs on uiw: every function that the library exports, as `extern "C"` functions under the
//! names of C.
//!
//! Nothing is exported from here: `cabi/ibverbs` is the shared library, whose table of exports
//! names these functions. Only the C libraries and the program `uiw` use this crate.
//!
//! * `system` forwards calls to the system's libibverbs if it is used as well (`UIW_SYSTEM_VERBS`).
//!   Rows of `exports.tsv` have one of three routes: most public functions have an object as their
//!   first argument, whose owner is looked up once the system's library is loaded; functions of the
//!   private nodes and those without an object go to the system's library then. It is opened by its
//!   path with RTLD_DEEPBIND when this library is loaded, because providers that a program is
//!   linked with register at once.
//! * `device_events`: one thread sleeps in a netlink socket without a time-out and turns changes of
//!   interfaces into asynchronous events and events of rdma_cm ids.
//! * The engine's number of an event selects C's object under a lock, and the event is counted as
//!   delivered under the same lock. Destruction removes the object from that table, then waits for
//!   acknowledgements.
//! * `oob`: out-of-band connected queue pairs. `ports` reserves numbers (TCP port and slot),
//!   `target` derives the peer's address from the attributes of RTR, `pair_info` is the private
//!   data, and `worker` the thread that connects, accepts and retries. `ibv_modify_qp` only
//!   enqueues a request for that thread. Each pair has a lock of its own, so no call waits for
//!   another queue pair's connection. A queue pair connected to itself uses a looped-back stream
//!   (`StackExtensions::connect_self`) and skips MPA's start-up.
//! * `ibv_poll_cq` yields the processor before its look after 32 empty polls, so that a completion
//!   that came meanwhile is returned.

pub mod ah;
pub mod async_events;
pub mod buf;
mod call_lock;
pub mod channel;
mod clock;
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
