# Everything that people and CI run. `make` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
TEST_FLAGS ?=
FUZZ_TIME ?= 60s
KILLS ?= 500
MINUTES ?= 10
TIMES ?= 3
IMAGES ?= 10000

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*?## ' $(MAKEFILE_LIST) | sort | awk 'BEGIN {FS = ":.*?## "} {printf "  %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build the programs into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: generate
generate: ## Regenerate the Go code of the contract
	bash test/tools/proto.sh generate

.PHONY: lint
lint: ## Run the linters on Go and on the contract
	bash test/tools/proto.sh lint
	bash test/tools/proto.sh breaking
	cd test/tools/lint && $(GO) build -o ../../../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	bin/golangci-lint run --timeout 15m ./...
	cd test/e2e && ../../bin/golangci-lint run --timeout 15m ./...

.PHONY: test
test: ## Run all tests with the race detector
	$(GO) test -race $(TEST_FLAGS) ./...

.PHONY: cover
cover: ## Print the statement coverage of engine and store
	$(GO) test -coverpkg=./engine/...,./store/... -coverprofile=build/coverage.out ./engine/... ./store/... ./internal/replay/...
	$(GO) tool cover -func=build/coverage.out | tail -1

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZ_TIME
	bash test/tools/fuzz.sh $(FUZZ_TIME)

.PHONY: mutations
mutations: ## Break the engine on purpose in each way of test/mutations and expect a test to notice
	bash test/mutations/run.sh

.PHONY: crash
crash: ## Kill the service KILLS times at named points, judge what it did, and find planted faults
	$(GO) test -tags crash -count=1 -timeout 60m -v -run 'TestCrash|TestPlantedFaultsAreFound' ./test/crash -kills=$(KILLS)

.PHONY: faults
faults: ## Stage each fault of time, disk and transport TIMES times, a storm, 100 clusters, a million pods
	$(GO) test -tags crash -count=1 -timeout 60m -v -run 'TestFaults|TestFullDisk|TestClockAhead|TestStorm|TestAllClusters|TestMillionPods' ./test/crash -times=$(TIMES) -million

.PHONY: soak
soak: ## Stage faults at random for MINUTES under load, judge all along, and print the figures
	$(GO) test -tags crash -count=1 -timeout $$(( $(MINUTES) + 15 ))m -v -run 'TestSoak$$' ./test/crash -minutes=$(MINUTES)

.PHONY: power
power: ## Open IMAGES files as a power failure may leave them: nothing acknowledged is lost
	$(GO) test -count=1 -timeout 60m -v -run 'TestPower' ./store/bolt -images=$(IMAGES)

.PHONY: bench
bench: bin/peer ## Measure beside the built-in controller and the machine's limits; writes docs/performance.md
	bin/peer -out docs/performance.md

.PHONY: bench-quick
bench-quick: bin/peer ## The same, smaller and once, printed
	bin/peer -quick -rounds 1 -side-timeout 60s

.PHONY: bin/peer
bin/peer:
	cd test/peer && $(GO) build -o ../../bin/peer .

.PHONY: bench-agent
bench-agent: build ## Measure the agent beside the built-in controller on a real API server
	bash test/controlplane/build.sh
	cd test/e2e && $(GO) test -run '^$$' -bench . -benchtime 3x -timeout 40m .

# Tests side by side are those that mostly wait: 12 is the clusters of TestNodeHealthTimelines.
.PHONY: e2e
e2e: build ## Run the tests on real API servers (the first build of a control plane takes a quarter of an hour)
	bash test/controlplane/build.sh
	cd test/e2e && $(GO) test -count=1 -timeout 40m -parallel 12 $(TEST_FLAGS) ./...

.PHONY: demo
demo: build ## Show the main job: waits, orders, a kill, and a wait that goes on
	bash test/demo/demo.sh

.PHONY: check-deploy
check-deploy: ## Check the manifests, the alert rules and their tests
	bash test/deploy/check.sh

.PHONY: verify
verify: ## Prove that generated code is fresh, modules are tidy, planted faults fit and the linters are content
	bash test/tools/verify.sh
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/reprieve
	$(MAKE) lint

.PHONY: clean
clean: ## Remove what the targets built
	rm -rf bin build
