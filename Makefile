# Each target sets up .venv by itself: on a fresh machine, Python 3.11+ and make are all it takes.

PYTHON ?= python3
BIN := .venv/bin
# two more than there are cores: many tests wait for processes that they start
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# without restarts: xdist 3.8 waits forever after it has replaced a worker that crashed in the middle of a file
# files in the order of tests/conftest.py, and not by their number of tests
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# compiled files are kept: where they may not be, each of the thousand processes of the tests compiles Fathom for itself
export PYTHONDONTWRITEBYTECODE :=

.PHONY: report test coverage check format clean

report: .venv/ready
	$(BIN)/fathom study

test: .venv/ready
	$(PYTEST)

coverage: .venv/ready  # the same tests, traced: about 1.7 times the CPU time
	$(PYTEST) --cov --cov-report=term

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Fathom needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_OPTIONS) --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[atari,dev]'
	touch $@
