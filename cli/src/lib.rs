//! The parts of the `uiw` program that are useful without its command line.

pub mod decode;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod note;
pub mod number;
pub mod pcap;
