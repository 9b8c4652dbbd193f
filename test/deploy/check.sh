#!/usr/bin/env bash
# check.sh: proves that deploy/ holds: every overlay builds, the alert rules are valid and do what their tests say, and
# the dashboard is JSON. Builds promtool and kubectl from pinned modules; cold that takes a few minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p bin
# Service discovery is most of promtool's code, and no rule needs it.
(cd test/tools/promtool && nice -n 10 go build -tags remove_all_sd -o ../../../bin/promtool github.com/prometheus/prometheus/cmd/promtool)
nice -n 10 bash test/controlplane/build.sh kubectl

bin/promtool check rules --lint=all --lint-fatal deploy/prometheus/alerts.yaml
bin/promtool test rules test/deploy/alerts_test.yaml
for rule in $(sed -n 's/^ *- alert: //p' deploy/prometheus/alerts.yaml); do
  grep -q "^  - name: $rule\$" test/deploy/alerts_test.yaml || { echo "check: rule $rule has no test in test/deploy/alerts_test.yaml" >&2; exit 1; }
done
manifests=$(KUBECTL=bin/controlplane/kubectl bash test/deploy/manifests.sh)
echo "check: $(grep -c '^kind:' <<<"$manifests") objects in $(ls deploy/kustomize/overlays | wc -l) overlays"
