//! Parts that the C libraries of uiw share: argument types and guards of exported functions, C's
//! structures, objects that C holds, error numbers, the log, settings, forks, signals, and the one
//! engine of a process.
//!
//! Only the C libraries, the program `uiw` and the Python module use this crate.
//!
//! C's pointers come from outside, with one contract: *a pointer is NULL, or an object that this
//! library gave out and that has not been freed, or memory that C may read and write as the man
//! page says*. The types of the functions' arguments ([`arguments`]) carry it, so that the
//! functions are safe code. NULL and objects of another kind are answered with an error.
//!
//! * `fork` has the generation of the process, and `ForkSafe`, the static in which each subsystem
//!   has its state. `fork` holds its locks while it copies the process; no thread holds two of
//!   them, so they need no order. The child increments the generation and discards the engine,
//!   whose threads and locks exist only in the parent; objects made before are inert. A table that
//!   every call reads is split into shards, each with a lock that is held only for the look-up. No
//!   process-wide lock is held across a call of the engine or a system call, except while the
//!   engine and the first device are opened.
//! * `object`: an object is C's structure with the Rust value behind it. A type tag between them
//!   detects wrong and freed objects, and a second word is the generation. A table has the
//!   addresses of existing objects, so that a stale or foreign pointer gives an error number and is
//!   not dereferenced. Posts and polls do not use the table: the program has already read the
//!   function pointer through the object.
//! * `boundary`: every exported function runs inside a guard that catches panics and turns errors
//!   into numbers. A thread is not cancelled inside; in functions that are called with every
//!   message, cancellation is disabled only while the thread drives the engine. Functions that wait
//!   hold nothing with a destructor.
//! * Functions that run with every message are generic or `#[inline]`, as crates are compiled
//!   without LTO.

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
