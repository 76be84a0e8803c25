# From a fresh clone to the result; each target does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test lint

train: $(VENV)/runtime.stamp
	$(BIN)/python main.py --config=configs/digits.py --workdir=runs/digits

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/runtime.stamp: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt $(VENV)/runtime.stamp
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	@touch $@
