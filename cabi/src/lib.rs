//! libibverbs and librdmacm on uiw: every function that the two libraries export, as `extern "C"` functions under the names of C.
//!
//! Nothing is exported from here: `cabi/ibverbs` is the shared library, whose table of exports names these functions.
//!
//! C's pointers come from outside, with one contract: *a pointer is NULL, or an object that this library gave out and that has not been freed, or
//! memory that C may read and write as the man page says*. The types of the functions' arguments ([`arguments`]) carry it, so that the functions
//! are safe code. NULL and objects of another kind are answered with an error.

pub mod abi;
mod abi_cell;
pub mod address;
pub mod ah;
pub mod arguments;
pub mod async_events;
pub mod boundary;
pub mod buf;
pub mod c_library;
mod call_lock;
pub mod channel;
mod clock;
pub mod cm;
pub mod context;
pub mod counters;
pub mod cq;
mod cq_ex;
mod cursor;
pub mod denied;
pub mod device;
mod device_events;
pub mod dmabuf;
pub mod engine;
pub mod environment;
pub mod errno;
pub mod fault_handler;
pub mod fork;
pub mod inherited;
pub mod lock;
pub mod log;
pub mod mapping;
pub mod mr;
pub mod mw;
pub mod object;
pub mod oob;
pub mod open;
pub mod pd;
pub mod persona;
pub mod ports;
pub mod post;
pub mod qp;
pub mod refused;
pub mod settings;
pub mod signals;
pub mod srq;
pub mod stack;
pub mod strings;
pub mod system;
pub mod system_path;
pub mod tls;
mod tls_watch;
pub mod users;
