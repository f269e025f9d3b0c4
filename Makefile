# `make help` lists the targets: a target's line says after `##` what it does.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# A file to a process: the tests of one may share a broker or a model. They come in the order of
# their names, so that the many short ones of widgets/ come last and both processes end together.
PARALLEL := --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
# Containers often set it. Then each process of the tests, and each of the hundreds that they start,
# compiles all of the sources, and pytest's changes to them, anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run setup check test test-short test-long clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## set up .venv with batchdeck, its kernels and the tools of development

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard engine/native/src/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "batchdeck needs Python 3.11 or newer, not " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

run: setup ## set up, then open the interface (without a terminal: hold eight scripted chats)
	@if [ -t 0 ] && [ -t 1 ]; then exec $(BIN)/tui; else exec $(BIN)/tui demo; fi

check: setup ## format, lint, types and import contracts: what a commit runs first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Some tests wait for a while: the types are checked meanwhile.
test: setup ## every check and every test that is not long
	@$(MAKE) --no-print-directory --jobs=2 check test-short

test-short: setup
	$(BIN)/pytest $(PARALLEL) -m 'not long'

test-long: setup ## fuzzing, sanitizers and soaks
	$(BIN)/pytest $(PARALLEL) -m long

clean: ## remove .venv
	rm -rf .venv
