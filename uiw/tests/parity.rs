//! Tests that the blocking API has the same names as the asynchronous one.

use std::collections::BTreeSet;

/// Types of both APIs, with the source files of the asynchronous one.
const TYPES: [(&str, &[&str]); 4] = [
    ("Connection", &[include_str!("../src/connection.rs"), include_str!("../src/shared.rs")]),
    ("Listener", &[include_str!("../src/listener.rs")]),
    ("Incoming", &[include_str!("../src/listener.rs")]),
    ("ByteStream", &[include_str!("../src/byte_stream/mod.rs")]),
];

/// Functions that only one of the APIs has, with the reason.
const EXCEPTIONS: [(&str, &str); 9] = [
    ("Connection::recv_timeout", "a future is given its limit by the runtime"),
    ("Listener::accept_timeout", "a future is given its limit by the runtime"),
    ("Listener::incoming_timeout", "a future is given its limit by the runtime"),
    ("Connection::as_async", "conversion"),
    ("Connection::into_async", "conversion"),
    ("ByteStream::into_async", "conversion"),
    ("ByteStream::read", "std::io::Read"),
    ("ByteStream::write", "std::io::Write"),
    ("ByteStream::flush", "std::io::Write"),
];

/// Returns the names of the public functions in the inherent `impl` blocks of a type.
fn functions(name: &str, source: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_inside = false;
    for line in source.lines() {
        if line.starts_with("impl") {
            is_inside = line == format!("impl {name} {{");
        }
        let function =
            ["    pub fn ", "    pub async fn "].iter().find_map(|start| line.strip_prefix(start));
        if is_inside && let Some(function) = function {
            let end = function.find(['(', '<']).unwrap();
            names.insert(format!("{name}::{}", &function[..end]));
        }
    }
    names
}

#[test]
fn blocking_names_match_async() {
    let blocking_source = include_str!("../src/blocking.rs");
    let mut differing = BTreeSet::new();
    for (name, sources) in TYPES {
        let asynchronous: BTreeSet<_> =
            sources.iter().flat_map(|source| functions(name, source)).collect();
        let blocking = functions(name, blocking_source);
        assert!(!asynchronous.is_empty() && !blocking.is_empty(), "{name}");
        differing.extend(asynchronous.symmetric_difference(&blocking).cloned());
    }
    let expected: BTreeSet<_> = EXCEPTIONS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(differing, expected);
}
