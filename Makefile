# SPDX-License-Identifier: LGPL-2.1-or-later
# Each target installs what it needs: Python packages into .venv; system packages with apt-get, as root on Debian and Ubuntu.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
C_FILES := $(shell find native tests -name '*.[ch]')

.PHONY: demo test check static format bench lab docs clean

demo: $(VENV)/.installed
	@KCOVDBG=$(BIN)/kcovdbg examples/tour.sh

# Everything: 20 minutes on two cores, and 6 more for the lab's kernel the first time.
test: $(VENV)/.dev
	$(BIN)/python -m tests

# What to run before each commit: 90 seconds on two cores.
check: $(VENV)/.dev static
	$(BIN)/python -m pytest -n 2 tests/unit

static: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/python -m docs.generate --check

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(C_FILES)

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench

lab: $(VENV)/.dev
	$(BIN)/python -m tests.lab build

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m sphinx -W --keep-going docs build/docs

# Debian packages ensurepip (python3-venv) and the headers (python3-dev) separately; a minimal system has no compiler either.
$(VENV)/bin/python:
	@{ $(PYTHON) -c 'import ensurepip, venv, sysconfig, os; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' && \
	  command -v cc; } >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && apt-get install -y --no-install-recommends python3-venv python3-dev gcc libc6-dev; \
	  else echo "needs Python's venv module and headers, and a C compiler:" \
	    "sudo apt-get install python3-venv python3-dev gcc libc6-dev" >&2; exit 2; fi; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml setup.py $(wildcard native/*)
	@# Debian 12's pip does not know --group. Here, so that it is tried again after a failure.
	$(BIN)/python -m pip install -q --upgrade pip
	@# setuptools warns of directories that an editable package finds beside itself, in nine lines; a checkout is meant to.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@# Python compiles what the tests import; pip would compile the rest as well, which takes ten seconds.
	$(BIN)/python -m pip install -q --no-compile --group dev
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
