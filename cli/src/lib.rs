//! The parts of the `uiw` program that are useful without its command line.

pub mod decode;
pub mod number;
pub mod pcap;
