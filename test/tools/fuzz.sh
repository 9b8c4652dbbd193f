#!/usr/bin/env bash
# fuzz.sh DURATION: runs every fuzz target of the module for that long.
set -euo pipefail
cd "$(dirname "$0")/../.."
time=${1:?usage: fuzz.sh DURATION}
for dir in $(git ls-files '*_test.go' | xargs grep -lE '^func Fuzz' | xargs -n1 dirname | sort -u); do
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/^func //'); do
    echo "== $dir $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x "./$dir"
  done
done
