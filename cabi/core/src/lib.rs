//! Parts that the C libraries of uiw share: argument types and guards of exported functions, C's structures, objects that C holds, error
//! numbers, the log, settings, forks, signals, and the one engine of a process.
//!
//! Only the C libraries, the program `uiw` and the Python module use this crate.
//!
//! C's pointers come from outside, with one contract: *a pointer is NULL, or an object that this library gave out and that has not been freed, or
//! memory that C may read and write as the man page says*. The types of the functions' arguments ([`arguments`]) carry it, so that the functions
//! are safe code. NULL and objects of another kind are answered with an error.

pub mod abi;
pub mod abi_cell;
pub mod address;
pub mod arguments;
pub mod boundary;
pub mod c_library;
pub mod counters;
pub mod denied;
pub mod engine;
pub mod environment;
pub mod errno;
pub mod fork;
pub mod inherited;
pub mod lock;
pub mod log;
pub mod object;
pub mod persona;
pub mod ports;
pub mod settings;
pub mod signals;
pub mod stack;
pub mod system_path;
pub mod tls;
mod tls_watch;
pub mod users;
