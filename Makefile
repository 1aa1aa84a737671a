# `make` prints what there is. Targets that compile first install what is missing (scripts/install-deps).

export PATH := $(PATH):$(HOME)/.cargo/bin
export PLAIT ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/release/plait
BPF_C := $(wildcard crates/*/bpf/*.[ch] crates/*/bpf/*/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help demo build test lint fmt bench reproduce deps test-deps clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## Protect a real transfer over two paths, and show what a listener got (needs root)
	$(PLAIT) demo

build: deps ## Build target/release/plait, and the compiled part of the Python package
	cargo build --release --locked -p plait-cli -p plait-python

# End-to-end tests run what the crates' own tests are built of, so that all is compiled once.
test: export PLAIT = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/plait
test: test-deps ## Run all tests (those that need root or a kernel feature say SKIP without it)
	cargo build --workspace --all-targets --locked
	scripts/test

lint: deps ## Check formatting, lints, bindings and Cargo.lock
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	clang-format-19 --dry-run -Werror $(BPF_C)
	scripts/bindings --check

fmt: deps ## Format Rust and BPF C
	cargo fmt --all
	clang-format-19 -i $(BPF_C)

bench: test-deps build ## Measure transforms, policies, throughput, set-up, analysis and emulated links (needs root)
	$(PLAIT) bench codec
	$(PLAIT) bench policy
	bench/throughput.py
	bench/setup.py
	bench/analyze.py --tshark-packets 100000
	bench/policy.py
	bench/links.py

reproduce: test-deps build ## Re-run the published experiments and write docs/results.md (an hour; QUICK=1: minutes; needs root)
	scripts/reproduce

deps: ## Install what is missing
	@scripts/install-deps

test-deps:
	@scripts/install-deps test

clean: ## Remove everything that was built or measured here
	cargo clean
	rm -rf out
