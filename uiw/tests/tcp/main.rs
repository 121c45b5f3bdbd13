//! Tests of connections over the kernel's TCP, with both ends in one process.

mod common;
mod progress;
mod smoke;
mod stress;
#[cfg(feature = "tls")]
mod truncation;
mod wakers;
