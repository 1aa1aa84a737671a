# `make` lists the targets. Targets that compile install missing dependencies first (scripts/install-deps).

export PATH := $(PATH):$(HOME)/.cargo/bin
export PLAIT ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/release/plait
BPF_C := $(wildcard bpf/include/*.h crates/*/bpf/*.[ch] crates/*/bpf/*/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help demo build install wheel packages test-packages test test-long docs prove deny lint fmt bench reproduce kmod kmod-package kmod-check test-kernel guest deps test-deps clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: deps ## Protect a real transfer over two paths and show what an eavesdropper gets (root)
	cargo build --release --locked -p plait-cli
	$(PLAIT) demo

build: deps ## Build target/release/plait and the native module of the Python package
	cargo build --release --locked -p plait-cli -p plait-python

wheel: test-deps ## Build the Python wheel with the command inside, and the sdist, into out/
	scripts/wheel

PREFIX ?= /usr/local
BINARY ?= $(PLAIT)
# The command that generates man pages and completions: BINARY, unless this machine needs an emulator to run that.
GENERATOR ?= $(BINARY)
STRIP ?= --strip
SHARE = $(DESTDIR)$(PREFIX)/share

install: ## Install what `make build` or `make demo` has built: make install [PREFIX=/usr/local] [DESTDIR=]
	@test -x $(BINARY) || { echo "expected $(BINARY): run make build first" >&2; exit 1; }
	install -D $(STRIP) -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/plait
	$(GENERATOR) generate $(SHARE)
	cd packaging/systemd && find . -type f | while read -r unit; do \
		install -D -m 644 "$$unit" "$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit"; \
		sed -i 's|/usr/bin/|$(PREFIX)/bin/|' "$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit"; done
	install -D -m 644 packaging/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/plait.conf
	install -D -m 644 packaging/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/plait.conf
	install -D -m 644 -t $(SHARE)/doc/plait README.md SECURITY.md LICENSE-APACHE LICENSE-MIT
	install -D -m 644 -t $(SHARE)/doc/plait/examples packaging/plait.toml policies/*.toml

packages: deps ## Build out/*.deb and out/*.rpm: make packages [ARCH=arm64]
	scripts/install-deps packages
	packaging/build $(ARCH)

test-packages: ## Install, use and purge the packages in fresh root trees: make test-packages [SUITES="bookworm trixie"] (root)
	packaging/test $(SUITES)

# End-to-end tests run the debug build that the Rust tests link against, so everything is compiled once.
test: export PLAIT = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/plait
test: test-deps ## Run the tests (15 minutes on two cores, 10 when compiled; skips by name what needs root)
	cargo build --workspace --all-targets --locked
	scripts/test

test-long: test-deps wheel build ## Run the long tests: soak, churn, full matrices, wheel, clusters, fuzz targets, kernel module, ARM64 (root)
	scripts/venv long
	scripts/test long

lint: test-deps ## Check formatting, lints, generated files, spelling and language rules
	scripts/lint

prove: ## Prove mode sealed with ProVerif, where it is installed
	@if command -v $${PROVERIF:-proverif} >/dev/null; then formal/prove; \
	else echo "SKIP prove: proverif is not installed"; fi

deny: ## Check licenses, advisories and duplicates of dependencies with cargo-deny, where it is installed (fetches advisories)
	@if command -v cargo-deny >/dev/null; then cargo deny --locked check; \
	else echo "SKIP deny: cargo-deny is not installed"; fi

docs: ## Build the book into target/book and check its links
	scripts/docs

fmt: test-deps ## Format Rust, BPF C and Python
	cargo fmt --all
	target/venv/bin/ruff format --quiet .
	clang-format-19 -i $(BPF_C)

bench: test-deps build ## Benchmark transforms, policies, throughput, set-up, analysis and links (root)
	cargo build --release --locked -p plait-bench
	$(PLAIT)-bench codec
	$(PLAIT)-bench policy
	target/venv/bin/python bench/throughput.py
	target/venv/bin/python bench/setup.py
	target/venv/bin/python bench/rates.py
	target/venv/bin/python bench/analyze.py --tshark-packets 100000
	target/venv/bin/python bench/policy.py
	target/venv/bin/python bench/links.py
	target/venv/bin/python bench/congestion.py

# QUICK=1 shortens every experiment (half an hour in all); ONLY="NAME ..." runs some of them; OPTIONS="--resume --seed 2".
reproduce: test-deps build ## Run the published experiments and write the results pages (eight hours, root)
	cargo build --release --locked -p plait-bench
	scripts/reproduce $(OPTIONS)

# The kernel that the module is built for; its headers must be installed.
KERNEL ?= $(shell uname -r)

KERNEL_BUILD = $(or $(wildcard $(CURDIR)/out/guest/lib/modules/$(KERNEL)/build),/lib/modules/$(KERNEL)/build)

kmod: ## Build kmod/plait.ko for the running kernel (KERNEL=release: for another one)
	$(MAKE) -C $(KERNEL_BUILD) M=$(CURDIR)/kmod modules

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

kmod-package: ## Copy the module's sources to out/plait-VERSION for DKMS
	rm -rf out/plait-$(VERSION)
	mkdir -p out/plait-$(VERSION)
	cp $(filter-out %.mod.c,$(wildcard kmod/*.[ch])) kmod/Kbuild crates/gateway/bpf/intf.h out/plait-$(VERSION)
	sed 's/^PACKAGE_VERSION=.*/PACKAGE_VERSION="$(VERSION)"/' kmod/dkms.conf >out/plait-$(VERSION)/dkms.conf

kmod-check: ## Run checkpatch and sparse on the kernel module
	kmod/guest/check

test-kernel: build ## Test the kernel module in QEMU guests with Debian's kernel (root)
	kmod/tests/all

guest: ## Run a script in such a guest: make guest RUN="script argument" [GUEST_KERNEL=6.12|debug]
	release=$$(kmod/guest/fetch) && $(MAKE) kmod KERNEL=$$release
	kmod/guest/boot $(RUN)

deps: ## Install build dependencies
	@scripts/install-deps

test-deps:
	@scripts/install-deps test
	@scripts/venv

clean: ## Remove build products and measurements
	cargo clean
	rm -rf out
