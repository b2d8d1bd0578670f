# `make test` installs, builds and runs everything; `make demo` shows it. Each target is what a person would type.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# The C library: see docs/embedding.md. The number in the name of the object changes when a program has to be built anew.
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SONAME := libmillrace.so.0

.PHONY: help deps build capi install lint unit e2e count test demo bench bench-quick bench-scaling embedded profile paths fairness deny reproduce clean

help:
	@echo 'make demo    nginx and redis on millrace beside the same on the kernel (root)'
	@echo 'make test    install what is missing, build, lint, run every test (root)'
	@echo 'make build   the command and the shim, release'
	@echo 'make capi    the C library, release'
	@echo 'make install the C library with its headers, below PREFIX (/usr/local) in DESTDIR'
	@echo 'make lint    format, clippy, docs, tidy'
	@echo 'make unit    tests that need no privilege'
	@echo 'make e2e     real programs over real links (root); ARGS=FILE::PART_OF_A_NAME JOBS=1'
	@echo 'make paths   goodput over a long and lossy path, beside the kernel and the simulation (root); ARGS=--help'
	@echo 'make fairness  what a thousand downloads get of one link, beside the kernel (root); ARGS=--help'
	@echo 'make bench   figures beside other stacks in the same run, and a report in bench/results (root); ARGS=--help'
	@echo 'make bench-quick  some of it in two short rounds: about two minutes when all is built'
	@echo 'make bench-scaling  connections divided among cores, beside locks on each; ARGS=--help'
	@echo 'make embedded  the library inside a program, beside the unmodified path and smoltcp (root); ARGS=--help'
	@echo 'make deny    licences, sources and bans of the dependencies, by cargo-deny'
	@echo 'make reproduce  two release builds in two directories, compared byte for byte'
	@echo 'make profile SCENARIO=memory-short-64  a flame graph of where the time goes, in bench/results; ARGS=--help'

deps:
	scripts/install-deps

build: deps
	$(CARGO) build --release --locked -p millrace-cli -p millrace-preload

# The shared object is made of the archive, since rustc has symbol versions of its own.
capi:
	$(CARGO) build --release --locked -p millrace-capi
	cc -shared -o $(TARGET)/release/libmillrace.so.$(VERSION) -Wl,-soname,$(SONAME) -Wl,--version-script=crates/capi/millrace.map -Wl,--gc-sections -Wl,--no-undefined \
		-Wl,-z,relro,-z,now -Wl,--strip-debug -Wl,--whole-archive $(TARGET)/release/libmillrace_capi.a -Wl,--no-whole-archive -lgcc_s -lm -lpthread -ldl -lc

install: capi
	install -d '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/lib/pkgconfig'
	install -m 644 crates/capi/include/*.h '$(DESTDIR)$(PREFIX)/include'
	install -m 644 $(TARGET)/release/libmillrace_capi.a '$(DESTDIR)$(PREFIX)/lib/libmillrace.a'
	install -m 755 $(TARGET)/release/libmillrace.so.$(VERSION) '$(DESTDIR)$(PREFIX)/lib'
	ln -sf libmillrace.so.$(VERSION) '$(DESTDIR)$(PREFIX)/lib/$(SONAME)'
	ln -sf $(SONAME) '$(DESTDIR)$(PREFIX)/lib/libmillrace.so'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' crates/capi/millrace.pc.in >'$(DESTDIR)$(PREFIX)/lib/pkgconfig/millrace.pc'

lint: deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet
	$(CARGO) xtask tidy

# The second line runs the protocols of shared memory in every order of their steps; it builds what they need of the stack with the checker's atomics.
unit: deps
	$(CARGO) test --locked --no-fail-fast --workspace --exclude millrace-e2e
	CARGO_TARGET_DIR=target-loom RUSTFLAGS='--cfg millrace_loom' $(CARGO) test --locked -p millrace-interleavings

# Tests mostly wait, so a few run side by side, each in network namespaces of its own; those that must be alone say so: see tests/e2e/src/turn.rs.
# The names of tests begin with their file: make e2e ARGS=devices::
JOBS ?= 4
e2e: build capi
	@[ "$$(id -u)" = 0 ] || { echo 'make e2e: needs root: it creates network namespaces and TAP devices; try: sudo make e2e' >&2; exit 1; }
	$(CARGO) build --release --locked -p millrace --all-features --examples
	$(CARGO) build --release --locked -p millrace-peer-smoltcp --bin smoltcp-server
	$(CARGO) build --release --locked -p millrace-bench --bin embedded_server
	MILLRACE_BIN=$(abspath $(TARGET))/release/millrace $(CARGO) test --locked --no-fail-fast -p millrace-e2e -- --test-threads=$(JOBS) $(ARGS)

# Instructions, beside what docs/instructions.toml says.
count: deps
	$(CARGO) xtask instructions

test: lint build unit count e2e

demo: build
	@[ "$$(id -u)" = 0 ] || { echo 'make demo: needs root: it creates a network namespace and a TAP device; try: sudo make demo' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/demo $(ARGS)

embedded: build
	@[ "$$(id -u)" = 0 ] || { echo 'make embedded: needs root: it creates network namespaces and TAP devices; try: sudo make embedded' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench -p millrace-peer-smoltcp
	$(CARGO) build --release --locked --quiet -p millrace --example tun_proxy --example pingpong
	$(TARGET)/release/embedded $(ARGS)

profile: build
	scripts/install-deps perf:linux-perf
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(CARGO) build --release --locked --quiet -p millrace-shard --example pair
	$(TARGET)/release/profile $(SCENARIO) $(ARGS)

bench-quick: ARGS += --quick
bench-quick: bench

bench: build
	@[ "$$(id -u)" = 0 ] || { echo 'make bench: needs root: it creates network namespaces and TAP devices; try: sudo make bench' >&2; exit 1; }
	scripts/install-deps go:golang-go
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/bench $(ARGS)

bench-scaling: deps
	$(CARGO) build --release --locked --quiet -p millrace-bench --bin scaling
	$(TARGET)/release/scaling $(ARGS)

paths: build
	@[ "$$(id -u)" = 0 ] || { echo 'make paths: needs root: it creates network namespaces and TAP devices; try: sudo make paths' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/paths $(ARGS)

fairness: build
	@[ "$$(id -u)" = 0 ] || { echo 'make fairness: needs root: it creates network namespaces and TAP devices; try: sudo make fairness' >&2; exit 1; }
	$(CARGO) build --release --locked --quiet -p millrace-bench
	$(TARGET)/release/fairness $(ARGS)

# cargo-deny is built when it is missing: about three minutes of one core, so it is no part of `make lint`.
deny: deps
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deny
	$(CARGO) fetch --locked --quiet
	$(CARGO) deny --offline check licenses bans sources

reproduce: deps
	scripts/reproduce

clean:
	$(CARGO) clean
