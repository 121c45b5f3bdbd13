#!/bin/sh
# Breaks each sentence of table.tsv in a copy of the sources (ID.patch) and runs the test that
# claims it, which must fail. The sentences are a random sample of all sentences that tests claim.
# Prints one line per sentence; the exit code is 1 if a test did not notice. With ids as arguments,
# only these sentences are run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/drawn"
unnoticed=0
# tar -m sets the current time: cargo identifies a crate by its place in the workspace, and must not
# reuse the builds of broken sources from an earlier run.
(cd "$root" && git ls-files -z | tar --no-recursion --null -cf - -T -) | tar -xmf - -C "$copy"
cd "$copy"
tab=$(printf '\t')
while IFS="$tab" read -r id test what; do
    case " $* " in "  " | *" $id "*) ;; *) continue ;; esac
    patch -s -p1 <"$here/$id.patch"
    # shellcheck disable=SC2086
    if cargo test -q $test >"$copy/log" 2>&1; then
        echo "$id | $what | NOT NOTICED"
        unnoticed=1
    elif grep -q "test result: FAILED" "$copy/log"; then
        echo "$id | $what | noticed by ${test##* }"
    else
        echo "$id | $what | DOES NOT BUILD"
        unnoticed=1
    fi
    patch -s -R -p1 <"$here/$id.patch"
done <"$here/table.tsv"
exit $unnoticed
