//! Test tools: a simulated network ([`sim`]), and conformance checks for implementations of a
//! transport ([`conformance`]).

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod conformance;
pub mod sim;
