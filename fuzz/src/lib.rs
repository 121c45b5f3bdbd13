//! Fuzz targets. Each one converts bytes to a conversation of two ends, and panics if uiw violates
//! one of its guarantees.
//!
//! The bytes are choices ([`input::Input`]), so frames have correct lengths and CRCs unless the
//! input selects an error. With arbitrary frames, nothing would pass the CRC. The same functions
//! run under libFuzzer (`fuzz/libfuzzer`) and, with the committed corpora, as ordinary tests
//! (`tests/corpora.rs`).

pub mod connection;
pub mod copies;
pub mod datagrams;
pub mod framing;
pub mod input;
pub mod rsockets;
pub mod segments;
pub mod startup;
pub mod stream;

/// Fuzz target: its name, and the function that runs an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 8] = [
    ("startup", startup::run),
    ("framing", framing::run),
    ("segments", segments::run),
    ("stream", stream::run),
    ("connection", connection::run),
    ("datagrams", datagrams::run),
    ("rsockets", rsockets::run),
    ("copies", copies::run),
];
