# What is done with the repository, by hand and by CI. `make help` lists it.

SHELL   := bash
GO      ?= go
TOOL    := $(GO) tool -modfile=tools/go.mod
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The race detector needs a C compiler; go itself says whether it found one.
RACE    := $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)

.PHONY: help build demo test lint fmt docs bench fuzz soak

help: #? list the targets
	@grep -hE '^[a-z]+:.*#\?' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*#\? */\1\t/' | awk -F'\t' '{printf "make %-6s  %s\n", $$1, $$2}'

build: #? build bin/weir; cmd/weir/default.pgo, where it is, guides the compiler
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/weir ./cmd/weir

# Builds for trying things out leave the profile alone: with it the compiler builds every package once more.
demo test soak: export GOFLAGS += -pgo=off

demo: #? start a cluster and the gateway, take a tour and stay (ONCE=1: end after the tour)
	$(GO) run ./cmd/demo $(if $(ONCE),-once)

test: #? run all tests that this machine can run, under the race detector
	@$(if $(RACE),:,echo 'no C compiler: the tests run without the race detector')
	@$(GO) run ./internal/searchnode/skips
	$(GO) test $(RACE) -timeout 20m ./...
	@# sync.Pool forgets on purpose under the race detector: what must not allocate is counted without it.
	$(GO) test -run Alloc $$(grep -rl AllocsPerRun --include='*_test.go' . | xargs -n1 dirname | sort -u)

lint: #? go vet, staticcheck and gofumpt
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	@unformatted=$$($(TOOL) gofumpt -l .) && [ -z "$$unformatted" ] || { echo "not formatted, see make fmt:"; echo "$$unformatted"; exit 1; }

fmt: #? format the source
	$(TOOL) gofumpt -w .

docs: #? write what is generated: the table of APIs, the texts of the reference, the reference
	$(GO) generate ./elastic/api ./internal/docs
	$(GO) run ./cmd/weir docs --out docs/reference

bench: #? measure side by side with the peers that are installed
	$(GO) run ./bench
	$(GO) run ./bench/dashboards -every 2s

fuzz: #? fuzz each target for a short time (FUZZTIME=20s)
	tools/fuzz $(or $(FUZZTIME),20s)

soak: #? long runs: fuzzing for minutes (FUZZTIME=3m), kill rounds, model checking
	tools/fuzz $(or $(FUZZTIME),3m)
	WEIR_SOAK=1 $(GO) test $(RACE) -count=1 -timeout 3h ./...
	WEIR_SOAK=1 $(GO) test -count=1 -run Alloc ./filters/limit
