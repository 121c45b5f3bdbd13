//! Inputs of the fuzzers as ordinary tests, so that each run repeats all inputs that were found.

use std::fs;
use std::path::Path;

fn replay(name: &str) {
    let (_, target) =
        uiw_fuzz::TARGETS.into_iter().find(|target| target.0 == name).expect("a target");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut inputs: Vec<_> =
        fs::read_dir(&folder).expect("a corpus").map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 20, "{} inputs in {}", inputs.len(), folder.display());
    for input in inputs {
        let bytes = fs::read(&input).unwrap();
        if std::panic::catch_unwind(|| target(&bytes)).is_err() {
            panic!("{} fails: cargo test -p uiw-fuzz -- {name}", input.display());
        }
    }
}

#[test]
fn startup() {
    replay("startup");
}

#[test]
fn framing() {
    replay("framing");
}

#[test]
fn segments() {
    replay("segments");
}

#[test]
fn stream() {
    replay("stream");
}

#[test]
fn datagrams() {
    replay("datagrams");
}

#[test]
fn connection() {
    replay("connection");
}

#[test]
fn rsockets() {
    replay("rsockets");
}

#[test]
fn copies() {
    replay("copies");
}
