# Two commands, each from nothing: make quickstart, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt --editable
export HF_HUB_OFFLINE ?= 1

.PHONY: quickstart test lint types slow

quickstart: $(VENV)/offline.stamp
	$(BIN)/python examples/quickstart.py

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp
	$(BIN)/mypy

slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m slow --numprocesses auto --dist worksteal

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Quoted extras; --quiet still shows errors. A changed pyproject or constraints file installs again.
$(VENV)/offline.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes the first time."
	$(INSTALL) '.[offline]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes the first time."
	$(INSTALL) '.[dev,offline]'
	touch $@
