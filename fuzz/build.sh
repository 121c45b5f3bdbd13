#!/bin/sh
# Builds the fuzzers: libFuzzer's instrumentation and AddressSanitizer, as `cargo fuzz build` does it.
# The last line of standard output is the folder with the programs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/libfuzzer/target}
RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
-Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks" \
    cargo +nightly build --release --manifest-path "$here/libfuzzer/Cargo.toml" \
    --target x86_64-unknown-linux-gnu --target-dir "$target" >&2
echo "$target/x86_64-unknown-linux-gnu/release"
