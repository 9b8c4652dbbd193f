#!/usr/bin/env bash
# run.sh: breaks the engine on purpose, one patch of this folder at a time, and
# expects a test to notice: TestPropertyMem, or the one that the patch names.
# The tree is not touched: go test reads the broken file in place of the real one.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for patch in test/mutations/*.patch; do
  name=$(basename "$patch" .patch)
  file=$(sed -n 's|^+++ b/||p' "$patch")
  test=$(sed -n 's/^test: //p' "$patch")
  mkdir -p "$work/$(dirname "$file")"
  cp "$file" "$work/$file"
  if ! git -C "$work" apply "$PWD/$patch"; then
    echo "$name: the patch no longer applies; the code it breaks has changed"
    failed=1
    continue
  fi
  printf '{"Replace":{"%s":"%s"}}' "$PWD/$file" "$work/$file" >"$work/overlay.json"
  if go test -overlay "$work/overlay.json" -count=1 -run "^${test:=TestPropertyMem}\$" "./$(dirname "$file")" \
    -rapid.nofailfile -rapid.shrinktime=1s >"$work/log" 2>&1; then
    echo "$name: NOT noticed by $test"
    failed=1
  elif ! grep -q -- '--- FAIL: ' "$work/log"; then
    echo "$name: does not build, or the test did not run:"
    cat "$work/log"
    failed=1
  else
    echo "$name: noticed by $test: $(grep -oE -m1 'failed after .*|I8: .*|panic: .*' "$work/log" | cut -c1-150)"
  fi
done
exit $failed
