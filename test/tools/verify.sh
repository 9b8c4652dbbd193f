#!/usr/bin/env bash
# Regenerates what is generated and fails if that differs from what is there, or if
# what is to be broken on purpose has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build
snapshot() { find proto -name '*.pb.go' -print0 | sort -z | xargs -0 sha256sum; sha256sum {.,test/e2e,test/peer}/go.{mod,sum}; }
before=$(snapshot)
bash test/tools/proto.sh generate
go mod tidy
(cd test/e2e && go mod tidy)
(cd test/peer && go mod tidy)
after=$(snapshot)
if [ "$before" != "$after" ]; then
  echo "verify: generated code or go.mod is stale; run 'make generate' and 'go mod tidy' (here, in test/e2e and in test/peer) and commit:" >&2
  diff <(echo "$before") <(echo "$after") >&2 || true
  exit 1
fi
unformatted=$(gofmt -l $(git ls-files '*.go' | grep -v '\.pb\.go$'))
if [ -n "$unformatted" ]; then
  echo "verify: not formatted:" $unformatted >&2
  exit 1
fi
go vet ./...
go vet -tags "crash failpoints" ./test/crash ./internal/... ./engine ./cmd/...
(cd test/e2e && go vet ./...)
(cd test/peer && go vet ./...)
go test -tags crash -count=1 -run 'TestPlantedFaultsFit$' ./test/crash
for patch in test/mutations/*.patch; do
  git apply --check "$patch" || { echo "verify: $patch no longer applies; the code that it breaks has changed" >&2; exit 1; }
done
echo "verify: generated code, modules and formatting are as they should be, and what is broken on purpose fits the code"
