# Everything sets itself up: the first target that needs the virtual environment makes it (.venv, pinned by
# constraints.txt). To use the CPU build of torch, see "CPU torch first" in README.md.

BIN := .venv/bin
PY := $(BIN)/python
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test long check lint fix docs faults security bench deadman

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## show the whole story on this machine: launch, interruption, resume, results, bill
	@$(BIN)/cloudtrain local demo

test: $(READY) ## run all tests
	$(PY) -m pytest -n 3 --dist loadgroup

long: $(READY) ## run the tests that take minutes each, and are no part of `make test`
	$(PY) -m pytest -n 2 --dist loadgroup -m long

lint: $(READY) ## check format, style, types and import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 --package cloudtrain.trainer
	$(BIN)/vermin -t=3.10- --no-tips --quiet trainer
	$(BIN)/lint-imports

check: lint test ## the gate: lint and test

fix: $(READY) ## apply the formatter and the safe style fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## write the command line's reference and the JSON schemas
	$(PY) -m cloudtrain.provisioner.cli.reference docs

faults: $(READY) ## play 10,000 schedules of faults against the controller, then without each safety
	$(PY) -m tests.faults --schedules 10000
	$(PY) -m tests.faults --schedules 10000 --mutants

security: $(READY) ## judge the AWS policies and the template with other people's tools (needs the network once)
	$(PY) -m tests.security

deadman: $(READY) ## boot machines under systemd-nspawn and see the dead-man switch end them (root, Debian; minutes)
	$(PY) -m tests.faults.deadman

bench: $(READY) ## run every benchmark and write benchmarks/RESULTS.md
	$(PY) -m benchmarks

# An existing .venv is kept, so that a torch that you chose yourself stays.
$(READY): pyproject.toml setup.py constraints.txt
	@test -x $(PY) || { \
	  for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      echo "making .venv with $$python"; \
	      if "$$python" -m venv .venv; then exit; else rm -rf .venv; exit 1; fi; \
	    fi; \
	  done; \
	  echo "make: no Python >= 3.11 found; install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@echo "installing into .venv (once; a minute or two, mostly torch)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local,train,dev]'
	@touch $@
