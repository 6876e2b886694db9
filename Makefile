# `make run` and `make test` need Python 3.11 or newer with pip, and nothing else. PYTHON=… picks the interpreter;
# PYTHONS="…" picks those that run the quick tests after it.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements/dev.txt
LOCKER := .cache/lock
UV := uv==0.13.7
# Three processes for two cores: many tests wait for processes and servers.
CORES := $(or $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null),2)
PROCESSES := $(shell echo $$(($(CORES) > 2 ? 4 : $(CORES) * 3 / 2)))
PYTEST_ALL_CORES = $(BIN)/python -m pytest -p tests.fork_pool --processes $(PROCESSES)
QUICK := -m "not slow"
TYPED := src $(foreach d,tests bench examples,$(if $(shell find $(d) -name '*.py' -print -quit 2>/dev/null),$(d)))

# The newest interpreter that runs: a name on PATH may be a version manager's shim for one that is not installed.
# pip can install into another environment (--python) since 22.3.
USABLE := import sys, venv, pip; assert sys.version_info >= (3, 11); \
	assert tuple(map(int, pip.__version__.split(".")[:2])) >= (22, 3)
FIND_PYTHON = for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	"$$python" -c '$(USABLE)' >/dev/null 2>&1 && break; python=; done; \
	test -n "$$python" || { echo 'make: no Python 3.11 or newer with pip 22.3 or newer was found; try PYTHON=/path/to/python' >&2; exit 1; }

# The interpreters for the quick tests of all supported versions: those on PATH, then those that pyenv installed.
SUPPORTED := 3.11 3.12 3.13
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)
PYTHONS ?= $(SUPPORTED:%=python%) $(wildcard $(SUPPORTED:%=$(PYENV)/versions/%.*/bin/python))
VERSION := $(USABLE); print("%d.%d" % sys.version_info[:2])

# Compiled modules are kept even if the environment forbids it. Compiling all tests takes ten seconds, and each of the
# hundreds of processes that tests start would compile Mainspring again.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pyc

.DEFAULT_GOAL := help
.PHONY: help run petitions companion test check suite quick environments others ready programs lint types imports bench chaos soak examples permissions format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(READY) ## run the demo
	$(BIN)/python -m mainspring.demo

petitions: $(READY) ## run the example of deadlines on PostgreSQL
	$(BIN)/python -m examples.petitions

companion: $(READY) ## run examples/companion with its own DynamoDB server
	$(BIN)/python -m examples.companion

test: ## everything that must pass: lint, types, layers, all tests; the quick tests on other Pythons
	@$(MAKE) --no-print-directory -j 3 programs environments lint imports
	@$(MAKE) --no-print-directory -j 2 types suite
	@$(MAKE) --no-print-directory others

check: lint ## the same with the quick tests only
	@$(MAKE) --no-print-directory -j 3 imports types quick

# One process collects the tests while the other core checks types.
suite: $(READY)
	$(PYTEST_ALL_CORES)

quick: $(READY)
	$(PYTEST_ALL_CORES) -q $(QUICK)

# Each version has its own environment from the same lock. A version that is missing or cannot be set up is skipped.
# `make test` sets them up while other things run. The versions are tested side by side: one collects while another runs.
GOAL := quick
environments:
	@$(MAKE) --no-print-directory others GOAL=ready

others: ## the quick tests on every other supported Python (PYTHONS="…": on these interpreters; empty: on none)
	@$(FIND_PYTHON); test ! -x $(BIN)/python || python=$(BIN)/python; done=$$("$$python" -c '$(VERSION)'); runs=; failed=; \
	for python in $(PYTHONS); do \
		version=$$("$$python" -c '$(VERSION)' 2>/dev/null) || continue; \
		case " $$done " in *" $$version "*) continue;; esac; done="$$done $$version"; \
		again="$(MAKE) --no-print-directory VENV=.cache/python-$$version PYTHON=$$python"; \
		if test $(GOAL) = ready; then $$again ready & continue; fi; \
		$$again ready || { echo "make: Python $$version is skipped: $$python could not set up its environment"; continue; }; \
		$$again quick PROCESSES=2 >.cache/python-$$version.log 2>&1 & runs="$$runs $$version:$$!"; \
	done; \
	for run in $$runs; do \
		wait $${run#*:} || failed=yes; echo "Quick tests on Python $${run%:*}"; cat .cache/python-$${run%:*}.log; \
	done; wait; \
	test $(GOAL) = ready || for version in $(SUPPORTED); do case " $$done " in *" $$version "*) ;; *) \
		echo "make: Python $$version is skipped: found no interpreter of that version with venv and pip 22.3 or newer";; \
	esac; done; test -z "$$failed"

ready: $(READY)

# A browser and Prometheus, for the tests that need them: fetched once, and not into the system.
programs:
	@$(FIND_PYTHON); "$$python" tests/programs.py

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY) ## mypy, strict
	$(BIN)/mypy $(TYPED)

imports: $(READY) ## import-linter: the layers
	$(BIN)/lint-imports --no-logo

bench: $(READY) ## measure
	$(BIN)/python -m bench
	$(BIN)/python -m bench.reads

chaos: $(READY) ## the long form of the chaos tests, and the store's suite on each PostgreSQL (PYTEST="-k …": some of them)
	MAINSPRING_CHAOS=long $(BIN)/python -m pytest tests/chaos tests/stores/test_postgres.py $(PYTEST)

soak: $(READY) ## an hour of load on the service: memory, files, lost jobs (SOAK="--minutes 10 --store postgres")
	$(BIN)/python -m bench.soak $(SOAK)

examples: $(READY) ## record the examples of the API's description again
	$(BIN)/python -m tests.service.recording

permissions: $(READY) ## write the table of permissions again
	$(BIN)/python -m tests.service.permissions

format: $(READY) ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

UPGRADE := --upgrade
lock: ## pin the newest versions again (with UPGRADE= keep the pins that still fit)
	@$(FIND_PYTHON); test -x $(LOCKER)/bin/python || "$$python" -m venv --without-pip $(LOCKER); \
	"$$python" -m pip --python $(LOCKER)/bin/python install -qq --disable-pip-version-check '$(UV)'
	$(LOCKER)/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 $(UPGRADE) --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
		--group dev pyproject.toml --output-file $(LOCK)

clean: ## remove the environment and all caches
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist

# The environment is made without pip, as some systems ship no ensurepip. The pip that the lock pins is installed from
# outside and installs the rest: older ones take twice as long.
$(READY): pyproject.toml $(LOCK)
	@$(FIND_PYTHON); test -x $(BIN)/python || "$$python" -m venv --without-pip $(VENV); \
	echo "Setting up $(VENV) with $$($(BIN)/python --version)"; \
	install() { "$$python" -m pip --python $(BIN)/python install -qq --no-compile --disable-pip-version-check "$$@"; }; \
	awk '/^[a-z]/ { is_pip = /^pip==/ } is_pip' $(LOCK) >$(VENV)/pip.txt && install --require-hashes -r $(VENV)/pip.txt && \
	python=$(BIN)/python && install --require-hashes -r $(LOCK) && \
	install --no-deps --no-build-isolation --editable . && touch $@
