# The chores of this module. `make help` lists them; each does its own set-up,
# and needs nothing but Go, git, make and gcc (gcc for the race detector only).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
# The time each fuzz target gets.
FUZZTIME ?= 5s
# More arguments for go test: make test TESTFLAGS='-run Ring -v'.
TESTFLAGS ?=
# The packages that test, race, bench and cover look at.
PKGS ?= ./...
# Ranks of the demo.
NP ?= 4

# Two packages at a time, and two parallel tests in each: several suites start processes and
# measure how soon a fault is reported, and more of them at once would measure each other. The tests
# that may run in parallel mostly wait, so two of them run at a time with GOMAXPROCS=1, too.
GOTEST := $(GO) test -p 2 -parallel 2

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Where the code must build and vet cleanly, as GOOS/GOARCH.
PLATFORMS := linux/amd64 linux/arm64 darwin/arm64 windows/amd64

##@ Start here

.PHONY: help
help: ## list these targets
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

# The ranks' standard error is a pipe to the launcher; only we know the terminal.
.PHONY: demo
demo: build ## train the handwritten digits on 4 processes; curves go to out/
	bin/tuttirun -np $(NP) bin/digits -out out $$([ ! -t 2 ] || echo -bar)

# VERBS=1 builds in the RDMA transports, for which libibverbs-dev, gcc and Linux are needed.
VERBS ?=
ifneq ($(VERBS),)
build: export CGO_ENABLED = 1
BUILDTAGS := -tags verbs
endif

.PHONY: build
build: ## build every program into bin/ (VERBS=1: with RDMA)
	@mkdir -p bin
	$(GO) build $(BUILDTAGS) -o bin/ ./cmd/... ./examples/...

# DESTDIR is put before all paths, to make a package. MPIRUN=1 also makes mpirun and mpiexec, which
# hide those of an MPI that stands later in PATH.
PREFIX ?= /usr/local
DESTDIR ?=
MPIRUN ?=

.PHONY: install
install: build ## install tuttirun, its manual page and completion below PREFIX (/usr/local); MPIRUN=1: as mpirun, too
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/man/man1"
	install bin/tuttirun bin/tuttibench "$(DESTDIR)$(PREFIX)/bin"
	install -m 644 docs/tuttirun.1 "$(DESTDIR)$(PREFIX)/share/man/man1"
	@for f in bash:bash-completion/completions/tuttirun zsh:zsh/site-functions/_tuttirun fish:fish/vendor_completions.d/tuttirun.fish; do \
		to="$(DESTDIR)$(PREFIX)/share/$${f#*:}"; install -d "$${to%/*}"; bin/tuttirun --completion "$${f%%:*}" >"$$to"; \
	done
ifneq ($(MPIRUN),)
	ln -sfn tuttirun "$(DESTDIR)$(PREFIX)/bin/mpirun"
	ln -sfn tuttirun "$(DESTDIR)$(PREFIX)/bin/mpiexec"
endif

##@ Check

.PHONY: test
test: ## run every test that needs no special hardware (at most 8 minutes on 2 cores)
	$(GOTEST) -timeout 10m $(TESTFLAGS) $(PKGS)

# Packages that start no goroutines: the import policy keeps sync, time and net out of them. No race
# is possible there, and GOMAXPROCS makes no difference.
PURE := agreement|negotiate|autotune|membership|choose
CONCURRENT = $$($(GO) list $(PKGS) | grep -vE '/($(PURE))$$')

# The race detector makes garbage collection expensive: with GOGC=400 the tests take a sixth less.
.PHONY: race
race: export GOGC = 400
race: ## the same under the race detector, where there are goroutines (at most 15 minutes on 2 cores)
	CGO_ENABLED=1 $(GOTEST) -race -timeout 25m $(TESTFLAGS) $(CONCURRENT)

# What waits must not starve what it waits for, also where Go runs one goroutine at
# a time: heartbeats, watchers, the ranks of one process. Results that go test has
# kept are no use: it does not know that they hold for another GOMAXPROCS.
.PHONY: test-1p
test-1p: ## every test where there are goroutines with GOMAXPROCS=1 (at most 3 times as long as make test)
	GOMAXPROCS=1 $(GOTEST) -count=1 -timeout 25m $(TESTFLAGS) $(CONCURRENT)

.PHONY: test-verbs
test-verbs: ## build with RDMA and test it on soft-RoCE in small VMs (Debian, apt; at most 12 minutes)
	@tools/test-verbs.sh

# Packages that cannot be had, a machine that is too slow and a VM that does not run
# are said, and no failure: see the script.
.PHONY: test-verbs-ci
test-verbs-ci: ## the same as far as packages can be had and the machine is fast enough (6 minutes, at most 17)
	@tools/test-verbs.sh ci

.PHONY: verbs-ready
verbs-ready: ## install and compile what test-verbs-ci needs, so that it finds it
	@tools/test-verbs.sh ready

.PHONY: soak-verbs
soak-verbs: ## TUTTI_SOAK (10000) steps over soft-RoCE with tensors that grow and shrink, and long loss (1 hour)
	@tools/test-verbs.sh soak

.PHONY: model
model: ## check the models of the protocols with spin (some minutes; needs Debian's packages spin and gcc)
	@comm/agreement/model/check.sh
	@coordinator/negotiate/model/check.sh
	@ps/internal/part/model/check.sh
	@transport/verbs/model/check.sh

.PHONY: lint
lint: lint-fmt lint-mod lint-vet lint-static lint-words lint-imports lint-paths lint-docs lint-generated ## gofmt, go mod tidy, vet for all platforms, staticcheck, the table of words, import policy, stray paths, generated docs and assembly

.PHONY: lint-fmt
lint-fmt:
	@bad=$$(git ls-files -z '*.go' | xargs -0 -r gofmt -l); \
	if [ -n "$$bad" ]; then printf 'not formatted by gofmt:\n%s\n' "$$bad"; exit 1; fi

.PHONY: lint-mod
lint-mod:
	$(GO) mod tidy -diff

.PHONY: lint-vet
lint-vet:
	@for p in $(PLATFORMS); do \
		echo "go vet for $$p"; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) vet ./...; \
	done

# The exceptions and their reasons stand in staticcheck.conf.
.PHONY: lint-static
lint-static:
	$(GO) run $(STATICCHECK) ./...

.PHONY: lint-words
lint-words:
	$(GO) run ./tools/words

.PHONY: lint-imports
lint-imports:
	$(GO) test ./internal/test/archtest

.PHONY: lint-paths
lint-paths:
	@tools/stray-paths.sh

# The generator is a module of its own, with the assembly's folder above it.
VECTOR := reduce/internal/vector

.PHONY: generate
generate: ## write the vector kernels' assembly anew
	cd $(VECTOR)/gen && $(GO) run . .. $(CURDIR)/internal/cpu

.PHONY: lint-generated
lint-generated:
	cd $(VECTOR)/gen && $(GO) vet . && $(GO) run . -check .. $(CURDIR)/internal/cpu

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (5s) each, one per core
	@GO=$(GO) FUZZTIME=$(FUZZTIME) tools/fuzz.sh

.PHONY: examples
examples: build ## run every program in examples/ and check its output
	$(GO) run ./tools/transcript examples

# The ranks' standard error is a pipe to the launcher, as in demo.
.PHONY: example-word2vec
example-word2vec: build ## learn vectors of words with a parameter server, three seeds; pictures go to out/ (at most 3 minutes)
	bin/tuttirun -np 6 bin/word2vec -seeds 3 -out out $$([ ! -t 2 ] || echo -bar)

# The launchers of other projects; those that cannot be had are skipped, with a line.
.PHONY: e2e-launch
e2e-launch: build ## run hello and digits under other launchers, on pseudo-hosts (2 minutes, at most 4)
	@tools/e2e-launch.sh

.PHONY: e2e-launch-all
e2e-launch-all: build ## the same, and the slow cases (5 minutes, at most 12)
	@tools/e2e-launch.sh all

# The check is a module of its own. go list downloads only the modules that the check needs.
DEPLOYCHECK := tools/deploycheck

.PHONY: deploy-modules
deploy-modules: ## download Kubernetes' modules, for check-deploy (150 MB)
	@cd $(DEPLOYCHECK) && for try in 1 2 3; do \
		if timeout 180 $(GO) list -deps -test ./... >/dev/null; then exit 0; fi; \
	done; \
	echo "the modules of $(DEPLOYCHECK)/go.mod cannot be downloaded from GOPROXY=$$($(GO) env GOPROXY)" >&2; exit 1

.PHONY: check-deploy
check-deploy: deploy-modules ## check deploy/kubernetes against the types and the CRDs, without a cluster (1 minute the first time)
	cd $(DEPLOYCHECK) && $(GO) vet ./... && $(GO) test -count=1 -timeout 30m ./...

# The tutorial's transport is a module of its own, as a user's would be.
UNIXSOCK := docs/transports/unixsock

.PHONY: tutorial
tutorial: build ## judge the transport of docs/transports.md and run an allreduce over it
	cd $(UNIXSOCK) && $(GO) mod tidy -diff && $(GO) vet ./... && CGO_ENABLED=1 $(GO) test -race -timeout 5m ./...
	cd $(UNIXSOCK) && $(GO) build -o $(CURDIR)/bin/ ./allreduce
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && TUTTI_REPORT_TRANSPORT=1 bin/tuttirun -np 2 bin/allreduce "$$dir" 2>&1 | tee "$$dir/output" && \
		test "$$(grep -cE 'rank [01] of 2: 1048576 sums are right' "$$dir/output")" = 2 && grep -q unixsock "$$dir/output"

# Without the links, which Go does not keep.
.PHONY: warm
warm: ## compile what race and fuzz need, so that they find it in Go's cache
	CGO_ENABLED=1 $(GO) list -race -test -export $(CONCURRENT) >/dev/null
	@GO=$(GO) tools/fuzz.sh build

.PHONY: cross
cross: ## build for the other platforms, without cgo
	@for p in $(PLATFORMS); do \
		echo "go build for $$p"; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) build ./...; \
	done

# More arguments: make chaos CHAOSFLAGS='-faults kill -count 1000 -seed 7 -v'. With
# CHAOSFLAGS='-record bench/results/faults.md' the tables go to that page. TUTTI_SOAK=H goes on for H hours.
CHAOSFLAGS ?=

.PHONY: chaos
chaos: ## kill, stop and starve ranks, cut and alter links, 100 times at random, and check the reports (2 minutes, at most 6)
	@mkdir -p bin
	$(GO) build -o bin/ ./tools/chaos
	bin/chaos -count 100 -seed 1 -time 6m $(CHAOSFLAGS)

# Nothing else on the machine gets much time meanwhile. A shorter run over another transport:
# make chaos-load CHAOSFLAGS='-lasts 2m -transport grpc'.
.PHONY: chaos-load
chaos-load: ## run 32 ranks beside 50 busy programs for 10 minutes; no rank may be lost
	@mkdir -p bin
	$(GO) build -o bin/ ./tools/chaos
	bin/chaos -faults load -count 1 -seed 13 -time 20m $(CHAOSFLAGS)

.PHONY: cover
cover: ## test coverage over all packages, as a figure and as out/cover.html
	@mkdir -p out
	$(GOTEST) -timeout 14m -coverpkg=./... -coverprofile=out/cover.out $(TESTFLAGS) $(PKGS)
	$(GO) tool cover -html=out/cover.out -o out/cover.html
	@$(GO) tool cover -func=out/cover.out | tail -n 1

# What is too long for every change: the full matrices and long runs.
.PHONY: soak
soak: ## the long tests: full matrices, hours of faults (about an hour)
	TUTTI_SOAK=1 $(GOTEST) -timeout 2h $(TESTFLAGS) $(PKGS)

##@ Measure

.PHONY: bench
bench: ## run every benchmark once
	$(GO) test -p 1 -run '^$$' -bench . -benchmem -timeout 30m $(TESTFLAGS) $(PKGS)

# More arguments for the recording; the short form of it:
#   make bench-peers PEERFLAGS='-rounds 1 -time 0.02 -max 1048576 -dir out/peers'
PEERFLAGS ?=

.PHONY: bench-peers
bench-peers: build ## set tutti beside Open MPI, MPICH and Gloo; writes bench/results (10 minutes)
	$(GO) run ./tools/peers record $(PEERFLAGS)

.PHONY: plot-peers
plot-peers: ## draw README's picture from what bench-peers has recorded
	$(GO) run ./tools/peers draw docs/img/peers.svg

.PHONY: count
count: ## lines of product code, comments and test support per package, and exported names
	$(GO) run ./tools/count -packages

.PHONY: kernel-table
kernel-table: ## time the kernels of package reduce, as a table (docs/kernels.md keeps one)
	@GO=$(GO) tools/kernel-table.sh

.PHONY: docs
docs: ## write docs/wire.md, docs/algorithms.md and docs/tuttirun.1 anew from the code
	$(GO) run ./tools/wiredoc docs/wire.md
	$(GO) run ./cmd/tuttirun --man >docs/tuttirun.1
	$(GO) generate ./collective

.PHONY: lint-docs
lint-docs:
	$(GO) run ./tools/wiredoc -check docs/wire.md
	$(GO) test -run '^TestManualPageIsCurrent$$' ./launch

.PHONY: plots
plots: build ## draw the pictures in docs/ anew, on this machine
	@mkdir -p docs/img
	bin/tuttirun -np $(NP) bin/digits -out docs/img
	bin/tuttirun -np $(NP) --restart-ranks 2 --min-np 2 bin/elastic -kill 0@100,3@150,1@1000 -out docs/img
	for t in tcp grpc; do \
		bin/tuttirun -np $(NP) bin/tuttibench -op allreduce -transport $$t -plot docs/img/allreduce-$$t.svg; \
	done

.PHONY: clean
clean: ## remove what make built
	rm -rf bin out
