#!/bin/sh
# defects.sh FOLDER [ID...]: applies each patch of FOLDER/table.tsv (ID.patch), one at a time, to a copy of the sources and runs the
# tests that the table names for it, which must fail. Prints a line for each. Exit code 1 if a defect is not noticed, or no row has an ID.
set -eu
folder=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/defects"
unnoticed=0 rows=0
# tar -m sets the current time: cargo identifies a crate by its place in the workspace, and must not
# reuse the builds of broken sources from an earlier run.
(cd "$root" && git ls-files -z | tar --no-recursion --null -cf - -T -) | tar -xmf - -C "$copy"
cd "$copy"
tab=$(printf '\t')
while IFS="$tab" read -r id test what; do
    case " $* " in "  " | *" $id "*) ;; *) continue ;; esac
    rows=$((rows + 1))
    git apply "$folder/$id.patch"
    # shellcheck disable=SC2086
    if ! cargo test -q --no-run $test >"$copy/log" 2>&1; then
        echo "$id | $what | DOES NOT BUILD"
        unnoticed=1
    elif cargo test -q $test >"$copy/log" 2>&1; then
        echo "$id | $what | NOT NOTICED"
        unnoticed=1
    else
        echo "$id | $what | noticed by ${test##* }"
    fi
    git apply -R "$folder/$id.patch"
done <"$folder/table.tsv"
test $rows -gt 0 || { echo "no row of $folder/table.tsv is called $*" >&2; exit 1; }
exit $unnoticed
