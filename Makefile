# Everything a fresh machine needs is two commands away: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOAK_SECONDS ?= 600
TEST_PROCESSES ?= auto
# Tests run side by side, so one thread each; those of a file stay together, because they share expensive fixtures.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile

.PHONY: help serve test quick soak check format docs reference lock clean

help:
	@echo "make serve   install, fetch the default model, serve on 127.0.0.1:8000"
	@echo "make test    install what the tests need, then run all tests"
	@echo "make quick   only fast tests: no processes, no browser, no real model"
	@echo "make soak    ten minutes of mixed traffic and store faults on a real server; SOAK_SECONDS changes the time"
	@echo "make check   format, lint, types, import rules, then all tests"
	@echo "make format  rewrite the code in the project's format"
	@echo "make docs    build the documentation into site/"
	@echo "make reference  rewrite what the docs repeat of the code"
	@echo "make lock    pin the newest allowed dependencies into requirements.lock"

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Python 3.11 to 3.13 is needed; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	PYTHONWARNINGS="ignore:Editable installation" \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

serve: $(VENV)/.installed
	exec $(BIN)/racer-csd serve $(ARGS)

test: $(VENV)/.installed
	tests/system_packages.sh nginx prometheus
	command -v chromium >/dev/null && command -v chromedriver >/dev/null || tests/system_packages.sh chromium chromium-driver fonts-dejavu-core
	$(BIN)/racer-csd fetch smollm2
	$(PYTEST) $(ARGS)

quick: $(VENV)/.installed
	$(PYTEST) -m "not slow" tests/racer tests/csd tests/text tests/engine tests/metrics tests/api $(ARGS)

soak: $(VENV)/.installed
	$(BIN)/python -m tests.soak --seconds $(SOAK_SECONDS) $(ARGS)

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory test

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed
	$(BIN)/python -m mkdocs build --strict

reference: $(VENV)/.installed
	$(BIN)/python -m tools.reference

lock:
	$(BIN)/pip-compile --quiet --upgrade --extra dev --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-annotate --no-header --allow-unsafe --constraint constraints.txt --output-file requirements.lock pyproject.toml
	sed -i -e 's/+cpu$$//' -e '/^#/d' -e '/^$$/d' requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
