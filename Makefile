# make demo   from a fresh clone to an optimised kernel, on whatever device is there
# make test   lint, types, staleness of the generated files and the quick tests: 6 minutes on two cores
# make test-all   the same with all tests that need no GPU: half an hour
# make docs   the documentation as a site, in build/site
# make bench  on a GPU: docs/benchmarks remade
#
# PYTHON=python3.12                   another interpreter (3.11 or newer)
# VENV=DIR                            another place than .venv
# VENV_FLAGS=--system-site-packages   take torch and triton from the system's Python where it has them
# PIP_FLAGS=...                       handed to every `pip install`

PYTHON ?=
VENV ?= .venv
VENV_FLAGS ?=
PIP_FLAGS ?=
TORCH ?= torch==2.13.0

BIN = $(VENV)/bin
KERNELGEN = $(abspath $(BIN))/kernelgen
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
HAS = $(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)'
# A driver that answers counts, a leftover of one does not.
EXTRA = $(if $(shell nvidia-smi -L 2>/dev/null),cuda,cpu)

# Tests start hundreds of processes: without bytecode each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo install dev test test-all checked lint types stale test-gpu nightly bench docs clean
.DELETE_ON_ERROR:

demo: install
	@mkdir -p demo
	cd demo && $(KERNELGEN) new broadcast.yaml
	cd demo && $(KERNELGEN) optimize broadcast --rounds 5
	@echo "In demo/operators/broadcast: the kernel, its tests, definition.md and optimization_log.md."

install: $(VENV)/.installed
dev: $(VENV)/.dev

$(BIN)/python:
	@python="$(PYTHON)"; \
	for p in $${python:-python3 python3.13 python3.12 python3.11}; do \
	  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$p; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "kernelgen needs Python 3.11 or newer; none found as $${python:-python3, python3.13, python3.12 or python3.11}." >&2; \
	  echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 2; \
	fi; \
	if ! $$found -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$found cannot make a virtual environment: install its venv package (Debian, Ubuntu: apt install python3-venv)." >&2; \
	  exit 2; \
	fi; \
	echo "$$found -m venv $(VENV)"; $$found -m venv $(VENV_FLAGS) $(VENV)

# torch goes first and alone on a machine without an NVIDIA GPU: beside other requirements pip may choose a build with CUDA.
$(VENV)/.torch: | $(BIN)/python
	@if [ $(EXTRA) = cpu ] && ! $(HAS) torch; then echo "pip install $(TORCH)"; $(PIP) $(TORCH); fi
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.torch
	$(PIP) -e '.[$(EXTRA)]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.torch
	$(PIP) -e '.[$(EXTRA),dev]'
	@touch $@ $(VENV)/.installed

# what some slow tests need beside .dev: Ray, Altair, and the linters of docs/deploy; without them these say that they are left out
$(VENV)/.all: pyproject.toml | $(VENV)/.dev
	-$(PIP) -e '.[ray,deploy,report]'
	@touch $@

test: checked
	$(BIN)/pytest -m "not gpu and not slow" -n auto --dist worksteal

# Coverage counts what runs in the tests' own processes. Python 3.12 monitors lines at little cost; 3.11 traces them, which
# takes two and a half times as long: there make test-all COVERAGE=yes
test-all: checked $(VENV)/.all
	coverage="$(COVERAGE)"; \
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then coverage=yes; fi; \
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	$(BIN)/pytest -m "not gpu" -n auto --dist worksteal $${coverage:+--cov=kernelgen --cov-report=term:skip-covered}

checked: dev
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint types stale

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check kernelgen tests
	$(BIN)/ruff format --check --isolated operators

types:
	$(BIN)/mypy

stale:
	$(BIN)/kernelgen new --check

test-gpu: dev
	$(BIN)/pytest -m gpu

# two thousand random references, others every night, instead of two hundred, and 500 kills of runs: hours on two cores
nightly: dev
	$(BIN)/python tests/kill_runs.py --kills 500
	KERNELGEN_RANDOM_TIMES=10 $(BIN)/pytest tests/compiler/test_compiler_random.py tests/compiler/test_several_kernels.py -n auto --dist worksteal

# on a GPU: the shipped operators against eager, torch.compile and max-autotune, as data, table and chart; and against
# Liger, FlagGems and Helion where these are installed
bench: dev
	$(BIN)/python docs/benchmarks/measure.py
	$(BIN)/python docs/benchmarks/peers.py

# pages link to files of the repository, which a site does not have: such links lead to nothing there and are told of
docs: $(BIN)/python
	@$(HAS) material || $(PIP) -e '.[docs]'
	rm -rf build/docs && mkdir -p build/docs && cp -r docs/*.md docs/LICENSE docs/api.ipynb docs/benchmarks build/docs
	sed 's#](docs/#](#g' README.md > build/docs/index.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis
