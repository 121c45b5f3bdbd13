//! Fuzz targets: each takes bytes, makes a conversation of them, and panics where a promise of uiw
//! is broken.
//!
//! Bytes are read as choices ([`input::Input`]), so that frames have right lengths and right CRCs
//! unless the input asks for a wrong one; otherwise nothing would get past the CRC. The same
//! functions run under libFuzzer (`fuzz/libfuzzer`) and, over the committed corpora, as ordinary
//! tests (`tests/corpora.rs`).

pub mod connection;
pub mod copies;
pub mod datagrams;
pub mod framing;
pub mod input;
pub mod rsockets;
pub mod segments;
pub mod startup;
pub mod stream;

/// A target: what it is called, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
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
