//! Impairments that are reproducible from a seed: faults of a transport ([`fault`]), and emulated
//! paths ([`wan`]).

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod fault;
mod random;
pub mod wan;

pub use random::{Random, Split};
