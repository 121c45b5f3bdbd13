#!/bin/sh
# find.sh [SECONDS]: plants each bug of this folder in a copy of the sources, one at a time, and lets the fuzzer whose name the
# patch begins with look for it, beginning with the committed corpus. Exit code 1 when one is not found in time (120 s each), 2 when a fuzzer cannot run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$(dirname "$here")")
seconds=${1:-120}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/planted"
missed=0
(cd "$root" && git ls-files -z | tar -cf - --no-recursion --null -T -) | tar -xmf - -C "$copy"
for patch in "$here"/*.patch; do
    name=$(basename "$patch" .patch)
    target=${name%%-*}
    patch -s -p1 -d "$copy" <"$patch"
    built=$("$copy/fuzz/build.sh" 2>"$copy/log") || { cat "$copy/log" >&2; echo "$name: the fuzzers cannot be built" >&2; exit 2; }
    programs=$(printf '%s\n' "$built" | tail -1)
    begun=$(date +%s)
    if nice -n 19 "$programs/$target" -max_total_time="$seconds" -len_control=0 -max_len=2000 -artifact_prefix="$copy/" \
        "$copy/fuzz/corpus/$target" >"$copy/log" 2>&1; then
        echo "$name: NOT FOUND in $seconds s"
        missed=1
    elif ! grep -qE "panicked at|ERROR: AddressSanitizer" "$copy/log"; then
        cat "$copy/log" >&2
        echo "$name: the fuzzer did not run" >&2
        exit 2
    else
        how=$(grep -E "panicked at|ERROR: AddressSanitizer" -A1 "$copy/log" | head -2 | tail -1 | cut -c1-110)
        echo "$name: found after $(($(date +%s) - begun)) s: $how"
    fi
    patch -s -R -p1 -d "$copy" <"$patch"
done
exit $missed
