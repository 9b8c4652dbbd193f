#!/usr/bin/env bash
# build.sh [PROGRAM...]: builds the programs of a Kubernetes control plane, or those named, into bin/controlplane.
# Cold all of them take a quarter of an hour on two cores; later runs take seconds, because go's own cache knows what is built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../bin/controlplane
mkdir -p "$out"
out=$(cd "$out" && pwd)
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false

# Kubernetes' version is stamped by its own build; a client refuses a server that calls itself v0.0.0.
version=$(cd "$here/kubernetes" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
minor=${minor%%.*}
stamp="-s -w -X k8s.io/component-base/version.gitVersion=$version"
stamp+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"

wanted() { [ -z "$names" ] || [[ " $names " == *" $1 "* ]]; }
names=$*

if wanted etcd; then
	(cd "$here/etcd" && go build -trimpath -ldflags '-s -w' -o "$out/etcd" .)
fi
(cd "$here/kubernetes" && for name in kube-apiserver kubectl kube-controller-manager; do
	wanted "$name" || continue
	go build -trimpath -ldflags "$stamp" -o "$out/$name" "k8s.io/kubernetes/cmd/$name"
done)
if wanted kwok; then
	(cd "$here/kwok" && go build -trimpath -ldflags '-s -w' -o "$out/kwok" sigs.k8s.io/kwok/cmd/kwok)
fi
