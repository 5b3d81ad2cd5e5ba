# Two commands for a newcomer: `make demo` and `make test`. Both create .venv on first use.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The extra that fits this machine: an NVIDIA card that answers, or none.
EXTRA  := $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo gpu || echo cpu)

.PHONY: demo test check soak bench docs clean

demo: $(VENV)/.demo
	@$(BIN)/colonnade demo

test: check
	@$(BIN)/python -m slipcover -m pytest tests

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Stopped or killed, it goes on where it was; PIECE='-k kills' is a part of it.
soak: $(VENV)/.dev
	@$(BIN)/python tests/soaking.py $(PIECE)

bench: $(VENV)/.dev
	@for question in benchmarks/*/main.py; do echo "== $$question"; $(BIN)/python $$question || exit 1; done

docs: $(VENV)/.dev
	@$(BIN)/pytest -n 0 tests/test_docs.py

clean:
	rm -rf $(VENV)

# A stamp per set of packages: a second run installs nothing unless pyproject.toml changed.
$(VENV)/.demo: pyproject.toml | $(VENV)/.python
	@echo "Installing TensorFlow ($(EXTRA)) and Colonnade into $(VENV), once; this takes a minute or two."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA),demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	@echo "Installing TensorFlow ($(EXTRA)), Colonnade and its tools into $(VENV), once; this takes a minute or two."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA),demo,bench,experiment,dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "Colonnade needs Python 3.11 to 3.13; try: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@
