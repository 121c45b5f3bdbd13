//! `libibverbs.so.1`: trampolines with symbol versions, and the functions of the C library that it
//! stands in front of. The functions are in `uiw-cabi-verbs`, `uiw-cabi-cm` and `uiw-cabi-rsocket`.
//!
//! `librdmacm.so.1` is an empty file that needs this one: the loader finds its names here, so that
//! a process has one engine whichever library it loads first, and however the two files were
//! copied.

mod export;
mod exports;
mod interpose;
mod own_calls;
mod slots;
