# `make` prints what there is. Targets that compile first install what is missing (scripts/install-deps).

export PATH := $(PATH):$(HOME)/.cargo/bin
export PLAIT ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/release/plait
BPF_C := $(wildcard crates/*/bpf/*.[ch] crates/*/bpf/*/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help demo build test test-long docs lint fmt bench reproduce kmod kmod-package kmod-check test-kernel guest deps test-deps clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## Protect a real transfer over two paths, and show what a listener got (needs root)
	$(PLAIT) demo

build: deps ## Build target/release/plait, and the compiled part of the Python package
	cargo build --release --locked -p plait-cli -p plait-python

# End-to-end tests run what the crates' own tests are built of, so that all is compiled once.
test: export PLAIT = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/plait
test: test-deps ## Run the tests: at most 15 minutes on two cores, 8 when compiled (what lacks root or a kernel feature is skipped by name)
	cargo build --workspace --all-targets --locked
	scripts/test

test-long: test-deps build ## Run what `make test` leaves out: soak, churn, whole matrices, fuzz targets, kernel module in a guest (three hours; needs root)
	scripts/test long

lint: test-deps ## Check formatting, lints, generated files, spelling and the language rules
	scripts/lint

fmt: test-deps ## Format Rust, BPF C and Python
	cargo fmt --all
	target/venv/bin/ruff format --quiet .
	clang-format-19 -i $(BPF_C)

bench: test-deps build ## Measure transforms, policies, throughput, set-up, analysis and emulated links (needs root)
	cargo build --release --locked -p plait-bench
	$(PLAIT)-bench codec
	$(PLAIT)-bench policy
	bench/throughput.py
	bench/setup.py
	bench/analyze.py --tshark-packets 100000
	bench/policy.py
	bench/links.py
	bench/congestion.py

reproduce: test-deps build ## Re-run the published experiments and write docs/reference/results.md and docs/reference/results-congestion.md (seven hours; QUICK=1: half an hour; ONLY=NAME: one; needs root)
	cargo build --release --locked -p plait-bench
	scripts/reproduce

# Which kernel the module is built for: its headers must be installed.
KERNEL ?= $(shell uname -r)

KERNEL_BUILD = $(or $(wildcard $(CURDIR)/out/guest/lib/modules/$(KERNEL)/build),/lib/modules/$(KERNEL)/build)

kmod: ## Build kmod/plait.ko for the running kernel (KERNEL=release: for another one)
	$(MAKE) -C $(KERNEL_BUILD) M=$(CURDIR)/kmod modules

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

kmod-package: ## Put the module's sources into out/plait-VERSION, for DKMS to build them for every kernel
	rm -rf out/plait-$(VERSION)
	mkdir -p out/plait-$(VERSION)
	cp $(filter-out %.mod.c,$(wildcard kmod/*.[ch])) kmod/Kbuild crates/gateway/bpf/intf.h out/plait-$(VERSION)
	sed 's/^PACKAGE_VERSION=.*/PACKAGE_VERSION="$(VERSION)"/' kmod/dkms.conf >out/plait-$(VERSION)/dkms.conf

kmod-check: ## Check the module's source with the kernel's checkpatch and with sparse
	kmod/guest/check

test-kernel: build ## Try the kernel module in guests with Debian's kernel (needs root; installs QEMU and headers)
	kmod/tests/all

guest: ## Run a script as root on that kernel: make guest RUN="script argument" [GUEST_KERNEL=6.12|debug]
	release=$$(kmod/guest/fetch) && $(MAKE) kmod KERNEL=$$release
	kmod/guest/boot $(RUN)

deps: ## Install what is missing
	@scripts/install-deps

test-deps:
	@scripts/install-deps test
	@scripts/venv

clean: ## Remove everything that was built or measured here
	cargo clean
	rm -rf out
