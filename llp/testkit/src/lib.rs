//! Tools for tests: a simulated network as a transport ([`sim`]), and checks for implementers of a
//! transport ([`conformance`]).

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod conformance;
pub mod sim;
