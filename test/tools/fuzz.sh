#!/usr/bin/env bash
# fuzz.sh DURATION: runs every fuzz target of the module for that long.
#
# Go's fuzzer can end a run of a given time with nothing but "context deadline
# exceeded" (golang/go#75804). That is no finding, but no clean run either: the
# target runs again, and fails if three runs end so.
set -euo pipefail
cd "$(dirname "$0")/../.."
time=${1:?usage: fuzz.sh DURATION}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run() { go test -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 10x "./$1" 2>&1 | tee "$log"; }

# cut_off: all that the failed run says is that its time was over.
cut_off() {
  ! grep -q 'Failing input written' "$log" &&
    [ "$(grep -A2 -- '^--- FAIL: Fuzz' "$log" | sed '1d;s/^ *//')" = $'context deadline exceeded\nFAIL' ]
}

for dir in $(git ls-files '*_test.go' | xargs grep -lE '^func Fuzz' | xargs -n1 dirname | sort -u); do
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/^func //'); do
    echo "== $dir $target"
    for try in 1 2 3; do
      run "$dir" "$target" && break
      if ! cut_off || [ "$try" = 3 ]; then exit 1; fi
      echo "== $dir $target: cut off by Go's fuzzer; once more"
    done
  done
done
