//! The parts of the `uiw` program that are useful without its command line.

#[doc(hidden)]
pub mod files;
