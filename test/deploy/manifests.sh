#!/usr/bin/env bash
# manifests.sh [OVERLAY...]: prints the manifests of deploy/kustomize/overlays as they would be applied; all overlays if
# none is named. KUBECTL says which kubectl builds them (bin/controlplane/kubectl, else the one on the PATH).
set -euo pipefail
cd "$(dirname "$0")/../.."
kubectl=${KUBECTL:-bin/controlplane/kubectl}
[ -x "$kubectl" ] || kubectl=kubectl
[ $# -gt 0 ] || set -- $(ls deploy/kustomize/overlays)
for overlay in "$@"; do
  echo "# overlay $overlay"
  "$kubectl" kustomize "deploy/kustomize/overlays/$overlay"
  echo "---"
done
