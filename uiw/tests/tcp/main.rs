//! Connections over the kernel's TCP, both ends in one process.

mod common;
mod progress;
mod smoke;
mod stress;
#[cfg(feature = "tls")]
mod truncation;
mod wakers;
