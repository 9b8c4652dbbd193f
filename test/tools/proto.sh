#!/usr/bin/env bash
# proto.sh generate | lint | breaking: works on the contract with buf and the
# local plugins, all built from pinned modules. Run it from anywhere.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:?usage: proto.sh generate|lint|breaking}
mkdir -p bin build
go build -o bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
(cd test/tools && go build -o ../../bin/buf github.com/bufbuild/buf/cmd/buf)
# buf/validate/validate.proto comes from the module, so that no copy is kept.
(cd test/tools && go mod download github.com/bufbuild/protovalidate)
src=$(cd test/tools && go list -m -f '{{.Dir}}' github.com/bufbuild/protovalidate)
mkdir -p build/protovalidate/buf/validate
cp -f "$src/proto/protovalidate/buf/validate/validate.proto" build/protovalidate/buf/validate/
chmod u+w build/protovalidate/buf/validate/validate.proto
case $what in
generate) bin/buf generate --template proto/buf.gen.yaml ;;
lint) bin/buf lint ;;
breaking)
  # Against the last release, or the commit before while there is none. The
  # underscore keeps the copy's Go files out of ./...
  base=$(git describe --tags --abbrev=0 2>/dev/null || git rev-parse -q --verify HEAD^ || git rev-parse HEAD)
  if git cat-file -e "$base:buf.yaml" 2>/dev/null; then
    rm -rf build/_before && mkdir -p build/_before
    git archive "$base" buf.yaml proto | tar -x -C build/_before
    mkdir -p build/_before/build && cp -r build/protovalidate build/_before/build/
    bin/buf breaking --against build/_before
  fi ;;
*) echo "proto.sh: unknown command $what" >&2; exit 2 ;;
esac
