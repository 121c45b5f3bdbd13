#!/bin/sh
# coverage.sh: how many lines of the receive paths the corpora reach, by the compiler's own instrumentation.
# Needs the nightly toolchain's `llvm-tools` component.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
target=${CARGO_TARGET_DIR:-$root/target}/fuzz-coverage
tools=$(dirname "$(find "$(rustc +nightly --print sysroot)" -name llvm-profdata | head -1)")
rm -rf "$target/profiles"
for name in startup framing segments stream connection; do
    export LLVM_PROFILE_FILE="$target/profiles/$name-%p.profraw"
    RUSTFLAGS="-Cinstrument-coverage" cargo +nightly test -q --manifest-path "$root/Cargo.toml" -p uiw-fuzz \
        --test corpora --target-dir "$target" -- --exact "$name" >&2
    "$tools/llvm-profdata" merge -sparse "$target/profiles/$name"-*.profraw -o "$target/profiles/$name.profdata"
done
program=$(find "$target/debug/deps" -maxdepth 1 -name 'corpora-*' -executable -type f -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
report() {
    name=$1
    shift
    "$tools/llvm-cov" export -summary-only -format=text -instr-profile "$target/profiles/$name.profdata" "$program" "$@" \
        | python3 -c "
import json, sys
def row(what, lines):
    print('| $name | %s | %d | %d | %.1f %% |' % (what, lines['count'], lines['covered'], lines['percent']))
data = json.load(sys.stdin)['data'][0]
for f in data['files']:
    row(f['filename'].removeprefix('$root/'), f['summary']['lines'])
row('**together**', data['totals']['lines'])"
}
echo "| target | file | lines | reached | |"
echo "|---|---|---|---|---|"
cd "$root"
report startup mpa/src/wire/startup.rs mpa/src/startup/*.rs
report framing mpa/src/rx.rs mpa/src/marker.rs mpa/src/size.rs
report segments ddp/src/rx.rs ddp/src/wire/*.rs rdmap/src/stream.rs rdmap/src/fault.rs rdmap/src/wire/*.rs
report stream stream/src/*.rs stream/src/receiver/*.rs stream/src/sender/*.rs
report connection stream/src/receiver/*.rs stream/src/reads.rs verbs/src/conn/*.rs verbs/src/qp/recv_queue.rs \
    mem/src/table.rs mem/src/table/find.rs mem/src/table/invalidate.rs mpa/src/rx.rs ddp/src/rx.rs rdmap/src/stream.rs
