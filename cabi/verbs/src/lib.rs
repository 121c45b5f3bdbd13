//! libibverbs on uiw: every function that the library exports, as `extern "C"` functions under the names of C.
//!
//! Nothing is exported from here: `cabi/ibverbs` is the shared library, whose table of exports names these functions. Only the C libraries and
//! the program `uiw` use this crate.

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
