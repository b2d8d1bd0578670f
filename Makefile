# `make test` installs, builds and runs everything; `make demo` shows it. Each target is what a person would type.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help deps build lint unit e2e count test demo bench paths fairness clean

help:
	@echo 'make demo    nginx and redis on millrace beside the same on the kernel (root)'
	@echo 'make test    install what is missing, build, lint, run every test (root)'
	@echo 'make build   the command and the shim, release'
	@echo 'make lint    format, clippy, docs, tidy'
	@echo 'make unit    tests that need no privilege'
	@echo 'make e2e     real programs over real links (root)'
	@echo 'make paths   goodput over a long and lossy path, beside the kernel and the simulation (root); ARGS=--help'
	@echo 'make fairness  what a thousand downloads get of one link, beside the kernel (root); ARGS=--help'
	@echo 'make bench   figures, against the kernel in the same run (root); ARGS=--quick for two short rounds'

deps:
	scripts/install-deps

build: deps
	$(CARGO) build --release --locked -p millrace-cli -p millrace-preload

lint: deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet
	$(CARGO) xtask tidy

unit: deps
	$(CARGO) test --locked --no-fail-fast --workspace --exclude millrace-e2e

# One test at a time: they share two cores and measure nothing, but disturb each other's timing all the same.
e2e: build
	@[ "$$(id -u)" = 0 ] || { echo 'make e2e: needs root: it creates network namespaces and TAP devices; try: sudo make e2e' >&2; exit 1; }
	$(CARGO) build --release --locked -p millrace --examples
	MILLRACE_BIN=$(abspath $(TARGET))/release/millrace $(CARGO) test --locked --no-fail-fast -p millrace-e2e -- --test-threads=1 $(ARGS)

# Instructions, beside what docs/instructions.toml says.
count: deps
	$(CARGO) xtask instructions

test: lint build unit count e2e

demo: build
	@[ "$$(id -u)" = 0 ] || { echo 'make demo: needs root: it creates a network namespace and a TAP device; try: sudo make demo' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/demo $(ARGS)

bench: build
	@[ "$$(id -u)" = 0 ] || { echo 'make bench: needs root: it creates network namespaces and TAP devices; try: sudo make bench' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/bench $(ARGS)

paths: build
	@[ "$$(id -u)" = 0 ] || { echo 'make paths: needs root: it creates network namespaces and TAP devices; try: sudo make paths' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/paths $(ARGS)

fairness: build
	@[ "$$(id -u)" = 0 ] || { echo 'make fairness: needs root: it creates network namespaces and TAP devices; try: sudo make fairness' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/fairness $(ARGS)

clean:
	$(CARGO) clean
