//! `librdmacm.so.1`: four version nodes and the need for `libibverbs.so.1`, where the functions
//! are.
//!
//! Two real files instead of one under two names: however they are copied, a process has one
//! engine.
