# make demo and make test do all the set-up: a virtual environment, the dependencies, the native build.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROMPT ?= Write a Python function that computes the factorial of count.

.DEFAULT_GOAL := test
.PHONY: demo test lint docs build clean

$(READY): pyproject.toml llamaspec/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "llamaspec needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@# the native build runs by itself first: inside pip nobody would see it advance
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cffi
	$(BIN)/python build.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# quick where nothing changed: build.py compares its inputs with what is in place
build: $(READY)
	@$(BIN)/python build.py

demo: build
	$(BIN)/llamaspec run --compare -n 160 "$(PROMPT)"

test: build
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# warnings are errors: a link or a docstring that is broken
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

clean:
	rm -rf build dist $(VENV) llamaspec/lib llamaspec/bin llamaspec/_native*.so
	find . -name __pycache__ -not -path './vendor/*' -prune -exec rm -rf {} +
