# Everything runs in .venv, which is made on first use. `make help` lists the targets.
# Variables: PYTHON (the interpreter to build .venv with), ARGS (added to the command of a target),
# HBASE (the version that `make matrix` is for).

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test long check coverage sim model chaos matrix kerberos hbase bench docs pictures clean
.PHONY: fast images lint release versions lowest audit

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
HBASE ?= 2.5
PYTHON ?=

help: ## list the targets
	@awk -F ': .*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.ready-demo ## the main job: real flights through Spark, killed part way, repaired, proven
	$(BIN)/txn demo flights $(ARGS)

test: $(VENV)/.ready-dev ## all tests but the long ones; ARGS are for those beside the unit tests
	$(BIN)/python -m tests.packages & $(MAKE) --no-print-directory coverage && wait
	$(BIN)/python -m pytest --ignore=tests/unit --ignore=tests/kerberos -m "not long" \
	  -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

long: $(VENV)/.ready-dev ## what `make test` leaves out, and more of the tests that leave something to chance
	TXN_SCHEDULES=12000 TXN_HISTORIES=3000 TXN_BANK_KILLS=110 TXN_HISTORY_KILLS=8 TXN_STEP=1 \
	  TXN_STATEMENTS=5000 $(BIN)/python -m pytest -n 2 --dist loadfile \
	  tests/simulation/test_schedules.py tests/history/test_simulated.py \
	  tests/history/test_processes.py tests/integration/test_bank.py \
	  tests/integration/test_histories.py tests/integration/test_leases_races.py \
	  tests/integration/test_locks_hive_reads.py $(ARGS)
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile \
	  --ignore=tests/integration/test_leases_races.py $(ARGS)

check: $(VENV)/.ready-dev ## lint, types, import rules and the fast tests: a minute on two cores
	@$(MAKE) --no-print-directory --jobs 2 lint fast

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

fast: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -q -m "fast and not long" -n 2 --dist loadfile $(ARGS)

coverage: $(VENV)/.ready-dev ## branches of the protocol's modules: 100 % or an error
	$(BIN)/python -m pytest -q tests/unit -m "not long" -n 2 --dist loadfile \
	  --no-loadscope-reorder --cov --cov-report=term-missing:skip-covered

sim: $(VENV)/.ready-dev ## a million simulated schedules, one in ten with a history
	$(BIN)/python -m tests.simulation --processes $$(getconf _NPROCESSORS_ONLN) $(ARGS)

model: $(VENV)/.ready-dev ## every state of the formal model of the protocol, and of its broken variants
	$(BIN)/python -m tests.model $(ARGS)

chaos: $(VENV)/.ready-dev ## ten minutes of kill -9 on a real HBase of several processes, then the verdict
	$(BIN)/python -m tests.chaos $(ARGS)

matrix: $(VENV)/.ready-dev ## the tests of stores, protocol and crashes on another HBase, 2.5: some minutes
	HBASE_TXN_TEST_VERSION=$(HBASE) $(BIN)/python -m pytest -n 2 --dist loadfile \
	  -k "(thrift or native or hbase or histories) and not emulator" \
	  tests/integration/test_protocol_on_hbase.py tests/integration/test_crashes_on_hbase.py \
	  tests/integration/test_histories.py tests/integration/test_native_on_hbase.py \
	  tests/integration/test_thrift.py tests/contract/test_differential.py \
	  tests/contract/test_contract.py $(ARGS)

kerberos: $(VENV)/.ready-dev $(VENV)/.ready-kerberos ## tests on an HBase with Kerberos; builds gssapi, which wants libkrb5-dev
	$(BIN)/python -m pytest tests/kerberos $(ARGS)

hbase: $(VENV)/.ready-dev ## start a real HBase on this machine; `txn hbase stop` ends it
	$(BIN)/txn hbase start $(ARGS)

bench: $(VENV)/.ready-dev ## measure commits on the embedded store beside its floor
	$(BIN)/python -m tests.bench $(ARGS)

pictures: $(VENV)/.ready-dev ## take the pictures of docs/console/ again, in a real browser
	TXN_PICTURES=1 $(BIN)/python -m pytest -q tests/console $(ARGS)

docs: $(VENV)/.ready-docs ## build the documentation as a site, in build/site
	$(BIN)/python -B docs/site/build.py
	@echo 'read it: build/site/index.html'

images: $(VENV)/.ready-dev ## build the images of docker/ and commit through them: two minutes, as root
	$(if $(filter-out 0,$(shell id -u)),sudo -E) $(BIN)/python -B -m tests.images $(ARGS)

release: $(VENV)/.ready-dev ## build into dist/, and try it with each extra alone: minutes, and wants libkrb5-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/release/build.sh
	HBASE_TXN_TEST_DIST=dist HBASE_TXN_TEST_EXTRAS=all $(BIN)/python -m pytest tests/release $(ARGS)

versions: $(VENV)/.ready-dev ## the fast tests on every Python from 3.11 to 3.14 that is found; ARGS names others
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/release/pythons.sh $(ARGS)

lowest: $(VENV)/.ready-dev ## the fast tests with the oldest versions that pyproject.toml allows; ARGS names Pythons
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/release/pythons.sh --lowest $(ARGS)

audit: $(VENV)/.ready-dev ## look for known vulnerabilities in what all extras install; asks a service
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/release/audit.sh $(ARGS)

clean: ## remove .venv, caches and what was built
	rm -rf $(VENV) build dist *.egg-info spark-warehouse metastore_db derby.log .coverage
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find txn recovery tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extras: a second call is quick, a changed pyproject.toml installs again.
$(VENV)/.ready-%: pyproject.toml $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# A name on PATH may be a stub that does not run, and Debian's python3 may lack venv: try each.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3.14 python3.13 python3.12 python3.11 python3 python); do \
	  if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then echo "making $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); fi; \
	done; \
	echo "error: no Python 3.11 or newer with the module venv (on Debian: apt install" \
	  "python3-venv); name one with make PYTHON=/path/to/python3" >&2; exit 1
