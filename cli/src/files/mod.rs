//! What `uiw cp` and the shares of `uiw serve` have in common, without connections: the protocol ([`protocol`] has its rules) and the files that
//! it reads and writes. A library for the program itself and for the fuzzers; no interface for other programs.

pub mod batch;
mod claims;
pub mod handler;
pub mod journal;
pub mod meta;
pub mod names;
pub mod part;
pub mod protocol;
mod ranges;
pub mod root;
#[cfg(test)]
mod scratch;
pub mod wire;
