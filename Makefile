# stemkv from a fresh clone. `make help` lists the targets.
#
# Variables: PYTHON (3.11 or newer), VENV, HOST, PORT, ARGS (further flags of `stemkv serve`),
# TORCH (which torch), TORCH_INDEX (where a CPU build comes from if the configured package
# indexes would bring CUDA onto a machine without an NVIDIA GPU; empty takes what they give).
PYTHON ?= python3
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --no-input --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help serve install test test-full check bench mutation clean FORCE

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

serve: $(VENV)/installed ## install, fetch the default model, serve it on HOST:PORT
	exec $(BIN)/stemkv serve --host $(HOST) --port $(PORT) $(ARGS)

install: $(VENV)/installed ## make VENV and install stemkv into it

test: $(VENV)/installed-test ## run all tests but the slow ones
	$(PYTEST) -m "not slow"

test-full: $(VENV)/installed-test ## run all tests
	$(PYTEST)

check: $(VENV)/installed-dev ## lint, format, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_imports.py

bench: $(VENV)/installed ## time to first token and tokens a second, beside transformers
	$(BIN)/python -m benchmarks.serve $(ARGS)

mutation: $(VENV)/installed-mutation ## change kvstore's code bit by bit and see that tests fail
	$(BIN)/python scripts/mutation.py build/mutation.jsonl $(ARGS)
	NUMBA_DISABLE_JIT=1 $(BIN)/python scripts/mutation.py build/mutation-loops.jsonl $(ARGS)

clean: ## remove VENV, caches and build outputs (the fetched model stays)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is newer than what was installed from; a second run installs nothing.
$(VENV)/torch: scripts/install_torch.py $(VENV)/torch-wanted
	@$(BIN)/python -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (23, 2))' \
	  || $(PIP) --upgrade "pip>=23.2"
	$(BIN)/python scripts/install_torch.py "$(TORCH)" "$(TORCH_INDEX)"
	@touch $@

$(VENV)/installed: pyproject.toml $(VENV)/torch
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) --editable ".[test]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed-test
	$(PIP) --editable ".[dev]"
	@touch $@

$(VENV)/installed-mutation: $(VENV)/installed-test
	$(PIP) --editable ".[mutation]"
	@touch $@

# Rewritten only when the choice changes, so that TORCH=... takes effect on the next run.
$(VENV)/torch-wanted: FORCE | $(VENV)/bin/pip
	@echo '$(TORCH) $(TORCH_INDEX)' | cmp -s - $@ || echo '$(TORCH) $(TORCH_INDEX)' > $@

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "stemkv needs Python 3.11 or newer; choose one with PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
