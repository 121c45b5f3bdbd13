#!/bin/sh
# run.sh TARGET MINUTES [CORPUS]: fuzzes for so many minutes of CPU time, then writes libFuzzer's final statistics to standard
# output. The corpus (fuzz/corpus/TARGET if none is named) is read and grows. Exit code 1: there is a finding, and the log says
# which. A process that is stopped meanwhile is none: time-outs are long. PROGRAMS names the folder that build.sh printed, so that nothing is built.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$1 limit=$(($2 * 60)) corpus=${3:-$here/corpus/$1}
programs=${PROGRAMS:-$("$here/build.sh" | tail -1)}
log=${LOG:-$here/$target.log}
hertz=$(getconf CLK_TCK)
nice -n 19 "$programs/$target" -max_len=2000 -timeout=3600 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$here/$target-" "$corpus" >"$log" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null' EXIT
seconds=0
while [ "$seconds" -lt "$limit" ] && kill -0 "$pid" 2>/dev/null; do
    sleep 2
    # Fields 14 and 15: user and system time of the process, in ticks.
    ticks=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | awk '{print $12 + $13}') || break
    seconds=$((${ticks:-0} / hertz))
done
kill -INT "$pid" 2>/dev/null || true
code=0
wait "$pid" || code=$?
trap - EXIT
if ! grep -q "run interrupted" "$log"; then
    grep -E "panicked|ERROR|SUMMARY|Test unit written" -A2 "$log" >&2 || true
    echo "$target: a finding after $seconds s of CPU time (exit code $code): $log" >&2
    exit 1
fi
echo "target: $target"
echo "CPU seconds: $seconds"
grep -E "#[0-9]+.*cov:" "$log" | tail -1 | sed 's/^/last line: /'
grep "^stat::" "$log"
