# SPDX-License-Identifier: LGPL-2.1-or-later
# Everything installs what it needs: Python packages into .venv, system packages with apt-get where this is root on Debian.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format bench lab docs clean

demo: $(VENV)/.installed
	@KCOVDBG=$(BIN)/kcovdbg examples/tour.sh

test: $(VENV)/.dev
	$(BIN)/python -m tests.prepare
	$(BIN)/python -m pytest -n 2 tests/unit tests/native tests/imitations tests/fuzz
	$(BIN)/python -m pytest tests/packages
	$(BIN)/python -m pytest -m "not bench" tests/lab tests/gdb

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 tests/unit

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench

lab: $(VENV)/.dev
	$(BIN)/python -m tests.lab build

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m sphinx -W --keep-going docs build/docs

# Debian's python3 comes without ensurepip (python3-venv has it) and without headers, and a small system without a compiler.
$(VENV)/bin/python:
	@{ $(PYTHON) -c 'import ensurepip, venv, sysconfig, os; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' && \
	  command -v cc; } >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && apt-get install -y --no-install-recommends python3-venv python3-dev gcc libc6-dev; \
	  else echo "needs Python's venv module and headers, and a C compiler:" \
	    "sudo apt-get install python3-venv python3-dev gcc libc6-dev" >&2; exit 2; fi; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q --group dev
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
