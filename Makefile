# make run: set up and open the interface (a demonstration where there is no terminal).
# make test: set up and pass every test and static check. make test-long: fuzzing and soaks.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# A file to a process: the tests of one may share a broker or a model.
PARALLEL := --numprocesses=auto --maxprocesses=4 --dist=loadfile

.PHONY: run setup test test-long clean

setup: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard engine/native/src/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "batchdeck needs Python 3.11 or newer, not " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

run: setup
	@if [ -t 0 ] && [ -t 1 ]; then exec $(BIN)/tui; else exec $(BIN)/tui demo; fi

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(PARALLEL) -m 'not long'

test-long: setup
	$(BIN)/pytest $(PARALLEL) -m long

clean:
	rm -rf .venv
