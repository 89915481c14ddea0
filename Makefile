# make help lists what can be made.
GO ?= go
GOLANGCI_LINT_VERSION := v2.15.0
GOTESTSUM_VERSION := v1.13.0
ACTIONLINT_VERSION := v1.7.12
GOVULNCHECK_VERSION := v1.9.0
GO_LICENSES_VERSION := v1.6.0
# The race detector needs cgo and a C compiler.
RACE := $(shell test "$$($(GO) env CGO_ENABLED)" = 1 && command -v $$($(GO) env CC) >/dev/null && echo -race)
# Every module of the tree.
MODULES := . $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod | sort))
# Those that users import or copy.
PUBLISHED := . nodeops/fastmount examples/minimal examples/blockdriver examples/nfsdriver
# Those whose tests run like the root's; test/kubelet, test/deploy, test/cluster, hack/images and hack/genspec have targets.
TESTED := . $(shell sed -n 's,^\t\.\./,,p' hack/test.work)
# What is built with -race sleeps for a second before it exits, and the tests start hundreds.
export GORACE ?= atexit_sleep_ms=20
export PATH := $(PATH):/usr/sbin:/sbin:$(shell $(GO) env GOPATH)/bin

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## walk a real driver from CreateVolume to two pods and back (root)
	@hack/tools.sh
	@$(GO) -C examples/blockdriver build -o "$(CURDIR)/bin/" . ./demo
	@bin/demo -driver bin/blockdriver

.PHONY: test
test: ## every test that this machine can run; as root that is all of them (two cores: 20 min, caches empty 40)
	@hack/tools.sh test
	@hack/testplan.sh
	@rm -rf bin/test
	@$(GO) build -o bin/ ./hack/testsummary
	@$(MAKE) --no-print-directory -k test-modules $(if $(RACE),test-norace) test-kubelet test-deploy; result=$$?; \
		bin/testsummary bin/test && exit $$result

# Results of each target are in bin/test, as test2json and as JUnit.
RESULTS = --hide-summary skipped --jsonfile $(CURDIR)/bin/test/$@.json --junitfile $(CURDIR)/bin/test/$@.xml
# Prints a line per package, and what failed at the end.
GOTESTSUM = mkdir -p bin/test; GOWORK=$(CURDIR)/hack/test.work gotestsum $(RESULTS) --format pkgname --format-icons text --format-hide-empty-pkg
VERBOSE = mkdir -p $(CURDIR)/bin/test; gotestsum $(RESULTS) --format standard-verbose

.PHONY: gotestsum
gotestsum:
	@gotestsum --version 2>/dev/null | grep -q "$(GOTESTSUM_VERSION)" || $(GO) install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)

.PHONY: test-modules
test-modules: gotestsum ## the tests of the modules in hack/test.work, under the race detector where there is a C compiler
	$(GOTESTSUM) -- $(RACE) -timeout 20m $(patsubst %,./%/...,$(TESTED))

.PHONY: test-norace
test-norace: gotestsum ## what csitest's tests leave out under the race detector: the rules against every defective driver
	$(GOTESTSUM) -- -timeout 20m -run '^(TestDefects|TestLegal|TestHarmless)$$' ./csitest

.PHONY: test-kubelet
test-kubelet: gotestsum ## registration against kubelet's own code, with a table of times (the first build takes minutes)
	cd test/kubelet && bash -o pipefail -c "$(VERBOSE) -- $(RACE) -timeout 10m -run 'TestRegistration$$' . | grep -v -e '^ *=== ' -e '^ *--- PASS' -e '^[EIW][0-9]'"

.PHONY: test-deploy
test-deploy: gotestsum ## the examples' manifests: rendered, decoded, linted, and the drivers started with their arguments
	cd test/deploy && bash -o pipefail -c "$(VERBOSE) -- -count=1 -timeout 5m . | grep -v -e '^ *=== ' -e 'PASS: TestRules/'"

.PHONY: test-monitoring
test-monitoring: ## the alerts of docs/monitoring, by promtool (Debian)
	hack/promtool.sh check rules docs/monitoring/alerts.yaml
	cd docs/monitoring && ../../hack/promtool.sh test rules alerts_test.yaml

.PHONY: test-vm
test-vm: ## what needs NFS, device-mapper or an older kernel, in virtual machines (Debian or its kin; VM=-h explains)
	@hack/tools.sh test vm
	@$(GO) build -o bin/vm ./test/vm
	@bin/vm $(VM)

.PHONY: test-cluster
test-cluster: ## blockdriver on a Kubernetes of its own: the first run compiles that, 15 min (root, Debian; CLUSTER=-h explains)
	@hack/tools.sh cluster
	@cd test/cluster && $(GO) test -count=1 .
	@cd test/cluster && $(GO) build -o "$(CURDIR)/bin/cluster" . && "$(CURDIR)/bin/cluster" $(CLUSTER)

# Of a commit, with the Go of the Dockerfiles, they are the same bytes on every machine.
IMAGES = GOTOOLCHAIN=go$$(sed -n 's/^ARG GO=golang:\([0-9.]*\).*/\1/p' examples/blockdriver/Dockerfile) $(GO) -C hack/images

.PHONY: images
images: ## the drivers' images for amd64 and arm64 as OCI archives in bin/images, with SBOMs (Debian; no Docker)
	@$(IMAGES) run ./make -root "$(CURDIR)" -cache "$(CURDIR)/.cache/images" -o "$(CURDIR)/bin/images" \
		-epoch "$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}" \
		-version "$${VERSION:-$$(git describe --tags --always --dirty --abbrev=12)}"

.PHONY: images-renew
images-renew: ## the versions of Debian's packages in the images: those that Debian serves now
	@$(IMAGES) run ./make -root "$(CURDIR)" -cache "$(CURDIR)/.cache/images" -renew

.PHONY: test-images
test-images: ## two clean checkouts make the same images, and the drivers in them serve (root, Debian)
	@$(IMAGES) test -count=1 -timeout 30m .

.PHONY: test-unprivileged
test-unprivileged: ## the tests that need no root, as the user nobody (root, to become nobody)
	hack/unprivileged.sh ./csitest/gate ./csiserver ./csierr ./breaker ./loopdev ./luks ./registration ./nodeops ./internal/mountapi ./examples/blockdriver/driver ./examples/blockdriver/memory ./examples/blockdriver/filepool ./examples/minimal ./examples/nfsdriver/driver ./examples/nfsdriver/exportdir ./examples/nfsdriver/memory ./test/fastmount

.PHONY: fuzz
fuzz: ## every fuzz test for FUZZTIME (default 30s)
	for m in $(TESTED); do (cd $$m && $(CURDIR)/hack/fuzz.sh $(or $(FUZZTIME),30s)) || exit 1; done

.PHONY: torture
torture: ## the long form of the tests that kill, and that fail calls, and all in the virtual machines (root)
	CSIKIT_TORTURE=1 CSIKIT_TEST_REQUIRE=userns,root,tools $(GO) test -count=1 -timeout 60m -v -run 'Killed|Every' ./nodeops
	for m in csitest examples/blockdriver/filepool examples/minimal examples/nfsdriver/exportdir; do \
		CSIKIT_TORTURE=1 CSIKIT_TEST_REQUIRE=userns,root,tools $(GO) -C $$m test -count=1 -timeout 60m -v -run 'TestCrash|TestDefects|TestRulesTorture' . || exit 1; \
	done
	@$(MAKE) --no-print-directory test-vm VM=-long
	@$(MAKE) --no-print-directory test-cluster CLUSTER=-long

.PHONY: stress
stress: ## the tests 20 times, short of CPU time: hours, or STRESS='-n 5 ./registration' (Linux; STRESS=-h explains)
	@hack/tools.sh test
	@$(GO) build -o bin/ ./hack/stress
	@GOWORK=$(CURDIR)/hack/test.work bin/stress -packages '$(patsubst %,./%/...,$(TESTED))' $(STRESS)

.PHONY: mutate-driver
mutate-driver: ## which changes of examples/blockdriver csicheck does not notice (root): hours, or a sample with MUTATE='-n 60'
	@hack/tools.sh test
	@$(GO) build -o bin/ ./cmd/csicheck
	@$(GO) -C hack/mutate build -o "$(CURDIR)/bin/mutate" .
	CSICHECK="$(CURDIR)/bin/csicheck" bin/mutate -C examples/blockdriver -work .cache/mutate-driver -explained hack/mutate/blockdriver.tsv \
		-build '$(GO) build -ldflags=-s -gcflags="./...=-N -l" -overlay "$$OVERLAY" -o "$$OUT/driver" .' -run "$(CURDIR)/hack/mutate/blockdriver.sh" \
		-without driver/telemetry.go -skip '^driver/(config|run)\.go|^filepool/(commands|config|fsck|handover|xfs)\.go|:loopsOf$$' \
		$(MUTATE) $(or $(MUTATE_PACKAGES),./driver ./storage)

.PHONY: mutate
mutate: ## which changes of what formats, mounts and probes the tests of nodeops do not notice (root): hours, or MUTATE='-n 60'
	@hack/tools.sh test
	@$(GO) -C hack/mutate build -o "$(CURDIR)/bin/mutate" .
	bin/mutate -C . -work .cache/mutate -explained hack/mutate/nodeops.tsv -timeout 6m \
		-build 'for p in internal/mark internal/probe nodeops; do $(GO) test -c -ldflags=-s -overlay "$$OVERLAY" -o "$$OUT/$${p##*/}.test" ./$$p || exit; done' \
		-run "$(CURDIR)/hack/mutate/nodeops.sh" -only '$(MUTATE_CORE)' $(MUTATE) ./internal/mark ./internal/probe ./nodeops
MUTATE_CORE = internal/(mark|probe)/|nodeops/(format|prepare|publish|stage|stale|table|target)_linux\.go

.PHONY: bench
bench: ## csikit beside its peers: bench/RESULTS.md and plots (root, 10 min; on a quiet machine; a part: BENCH=publish)
	@$(GO) -C bench build -o "$(CURDIR)/bin/bench" .
	@bin/bench -parts "$(BENCH)" $(if $(BENCH),,-o bench)

.PHONY: bench-check
bench-check: ## the short form of it, against bench/floors.json (root)
	@$(GO) -C bench build -o "$(CURDIR)/bin/bench" .
	@bin/bench -check bench/floors.json

.PHONY: bench-go
bench-go: ## every benchmark of the packages, once
	for m in $(TESTED); do (cd $$m && $(GO) test -run '^$$' -bench . ./...) || exit 1; done

.PHONY: generate
generate: ## csispec's rules from csi.proto of the spec module; fastmount's copy of internal/mountapi
	$(GO) generate ./csispec
	hack/mountapi.sh

.PHONY: test-generated
test-generated: ## csispec's rules are those of csi.proto (fetches a proto compiler)
	$(GO) -C hack/genspec vet ./...
	$(GO) -C hack/genspec test -timeout 5m ./...

.PHONY: lint
lint: ## gofmt, words, go vet, golangci-lint, in the nested modules too
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@hack/words.sh
	for m in $(MODULES); do $(GO) -C $$m vet ./... || exit 1; done
	@golangci-lint version 2>/dev/null | grep -q "$(GOLANGCI_LINT_VERSION:v%=%)" || \
		{ echo "building golangci-lint $(GOLANGCI_LINT_VERSION)"; $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION); }
	for m in $(MODULES); do (cd $$m && golangci-lint run) || exit 1; done
	@$(GO) run github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION) -shellcheck=

.PHONY: vulnerabilities
vulnerabilities: ## known vulnerabilities in what the modules for users call (needs vuln.go.dev)
	for m in $(PUBLISHED); do $(GO) -C $$m run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./... || exit 1; done

.PHONY: licences
licences: ## what the modules for users import has a licence that allows it
	for m in $(PUBLISHED); do (cd $$m && $(GO) run github.com/google/go-licenses@$(GO_LICENSES_VERSION) check ./... \
		--ignore github.com/csikit/csikit --allowed_licenses=Apache-2.0,BSD-2-Clause,BSD-3-Clause,MIT,ISC) || exit 1; done

.PHONY: cross
cross: ## build and vet for the other systems, tests included
	for t in linux/arm64 darwin/arm64 windows/amd64; do for m in $(TESTED); do \
		echo "$$t $$m"; GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) -C $$m vet ./... || exit 1; \
	done; done

.PHONY: api
api: ## incompatible changes of the exported API since the last tag (an error from v1 on)
	@hack/api.sh

.PHONY: release
release: ## tag all modules: make release VERSION=v0.1.0 (after make ci; pushes nothing)
	@hack/release.sh "$(VERSION)"

.PHONY: ci
ci: ## what a change has to pass
	.ci/run
