//! libibverbs and librdmacm on uiw: every function that the two libraries export, as `extern "C"` functions under the names of C.
//!
//! Nothing is exported from here: `cabi/ibverbs` is the shared library, whose table of exports names these functions.
//!
//! C's pointers come from outside, with one contract: *a pointer is NULL, or an object that this library gave out and that has not been freed, or
//! memory that C may read and write as the man page says*. The types of the functions' arguments ([`arguments`]) carry it, so that the functions
//! are safe code. NULL and objects of another kind are answered with an error.

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
