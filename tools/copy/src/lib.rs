//! What `uiw cp` and the shares of `uiw serve` have in common, without connections: the protocol
//! ([`protocol`] has its rules) and the files that it reads and writes. A library for the program
//! itself and for the fuzzers; no interface for other programs.

#[doc(hidden)]
pub mod batch;
mod claims;
#[doc(hidden)]
pub mod handler;
#[doc(hidden)]
pub mod journal;
#[doc(hidden)]
pub mod meta;
#[doc(hidden)]
pub mod names;
#[doc(hidden)]
pub mod part;
#[doc(hidden)]
pub mod protocol;
mod ranges;
#[doc(hidden)]
pub mod remove;
#[doc(hidden)]
pub mod root;
#[cfg(test)]
mod scratch;
#[doc(hidden)]
pub mod tally;
#[doc(hidden)]
pub mod wire;
