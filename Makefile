# Two commands for a newcomer: `make demo` and `make test`. Both create .venv on first use.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The extra that fits this machine: an NVIDIA card that answers, or none.
EXTRA  := $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo gpu || echo cpu)

# Of the build for CUDA, which tests on cards made of host memory need; the library takes a part of it by its name.
FAKED  := tensorflow==2.21.*
CARDS  := .venv-cards
COMPILER := command -v g++ >/dev/null || { echo "make cards needs a C++ compiler. On Debian: apt-get install g++"; exit 1; }

.PHONY: demo test coverage cards check soak bench bench-all bench-peers docs clean

demo: $(VENV)/.demo
	@$(BIN)/colonnade demo

test: check
	@$(BIN)/python -m pytest tests

# The same, and which lines no test ran; that takes a fifth longer.
coverage: $(VENV)/.dev
	@$(BIN)/python -m slipcover -m pytest tests

# On eight cards made of host memory: see tests/cards/README.md.
cards: $(CARDS)/fakecards.so
	@FAKE_CARDS=8 FAKE_CARDS_LIBRARY=$(CARDS)/fakecards.so PYTHONPATH=tests/cards \
		$(CARDS)/bin/python -m pytest --confcutdir=tests/cards tests/cards

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Stopped or killed, it goes on where it was; PIECE='-k kills' is a part of it.
soak: $(VENV)/.dev
	@$(BIN)/python tests/soaking.py $(PIECE)

# The contest: half an hour; QUICK=--quick takes five minutes. See benchmarks/throughput/README.md.
bench: $(VENV)/.dev
	@$(BIN)/python benchmarks/throughput/main.py $(QUICK)

# Every question of benchmarks/, the contest among them: hours.
bench-all: $(VENV)/.dev
	@for question in benchmarks/*/main.py; do echo "== $$question"; $(BIN)/python $$question || exit 1; done

# torch and JAX, which the contest is held against, each in an environment of its own.
bench-peers: .venv-torch/.made .venv-jax/.made

.venv-%/.made: benchmarks/throughput/%.txt
	@echo "Installing what $< names into .venv-$*, once; this takes some minutes."
	@$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< $(PIP_OPTIONS)
	@touch $@

# The site, in build/site; `make test` runs the code that it shows. Not --quiet: MkDocs would not count warnings.
docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo build/site/index.html

clean:
	rm -rf $(VENV) $(CARDS) .venv-torch .venv-jax

# A stamp per set of packages: a second run installs nothing unless pyproject.toml changed.
$(VENV)/.demo: pyproject.toml | $(VENV)/.python
	@echo "Installing TensorFlow ($(EXTRA)) and Colonnade into $(VENV), once; this takes a minute or two."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA),demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	@echo "Installing TensorFlow ($(EXTRA)), Colonnade and its tools into $(VENV), once; this takes a minute or two."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA),demo,bench,experiment,sweep,postgresql,report,docs,dev]'
	@touch $@ $(VENV)/.demo

$(CARDS)/fakecards.so: tests/cards/fakecards.cc $(CARDS)/.dev
	@$(COMPILER)
	@folder=$$($(CARDS)/bin/python -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("tensorflow").origin))') && \
		g++ -w -std=c++17 -O1 -shared -fPIC -fno-rtti -DNDEBUG -I"$$folder/include" $< -o $@ -L"$$folder" \
		-l:libtensorflow_framework.so.2 -l:libtensorflow_cc.so.2 -Wl,-rpath,"$$folder" -ldl

$(CARDS)/.dev: pyproject.toml
	@$(COMPILER)
	@echo "Installing $(FAKED), the build for CUDA, and Colonnade into $(CARDS), once; this takes some minutes."
	@$(PYTHON) -m venv $(CARDS)
	@$(CARDS)/bin/python -m pip install --quiet --disable-pip-version-check '$(FAKED)' tensorboard --editable '.[demo,dev]'
	@touch $@

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "Colonnade needs Python 3.11 to 3.13; try: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@
