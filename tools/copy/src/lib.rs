//! Parts of `uiw cp` and `uiw serve --share` that do not depend on connections: the protocol (see
//! [`protocol`] for its rules), and reading and writing files. This library is for the program
//! `uiw` and the fuzzers only; it is not an interface for other programs.

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
