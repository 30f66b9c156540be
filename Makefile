# corral: install, serve, check. `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8080
ARGS ?=
BIN := $(VENV)/bin
# Tests wait as well as compute: one process more than there are cores.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)

.PHONY: help serve test check format long bench docs clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make serve    install and serve the demo model on http://$(HOST):$(PORT)   (ARGS='-m model.gguf -c 8192')"
	@echo "make test     everything that CI runs: format, lint, types, layers, tests"
	@echo "              (ARGS='tests/sim' or other arguments of pytest, WORKERS=1 to run one test at a time)"
	@echo "make check    the same without the tests"
	@echo "make format   format the code and sort imports"
	@echo "make long     20,000 random histories (CORRAL_HISTORIES=n), crowds of clients that vanish (about 2 hours)"
	@echo "make bench    measure a running server                                     (ARGS='--help')"
	@echo "make docs     write docs/cli.md from the table of flags"
	@echo "make clean    remove caches and build results; make distclean removes $(VENV), too"
	@echo "PYTHON=python3.12 chooses the interpreter (3.11 or later)."

# A second run finds the stamp and is immediate; a changed pyproject.toml installs again.
$(VENV)/.installed-demo: pyproject.toml
	@scripts/install.sh "$(PYTHON)" "$(VENV)" demo
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	@scripts/install.sh "$(PYTHON)" "$(VENV)" dev
	@touch $@ $(VENV)/.installed-demo

serve: $(VENV)/.installed-demo
	@exec $(BIN)/corral serve --host $(HOST) --port $(PORT) $(ARGS)

bench: $(VENV)/.installed-demo
	@exec $(BIN)/corral bench $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

long: $(VENV)/.installed-dev
	CORRAL_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) tests/props --timeout 7200 $(ARGS)
	CORRAL_LONG=1 $(BIN)/python -m pytest tests/api/test_vanish.py tests/model/test_pressure.py --timeout 3600 $(ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	$(BIN)/python -c 'from corral.cli.help import reference_page as page; print(page(), end="")' > docs/cli.md

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
