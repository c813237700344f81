# Needs Python (3.10 to 3.13) and make. Everything else is installed into .venv by the first target that needs it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made-of

# Arguments of the demo, as in: make demo DEMO="--server localstack --data tar"
DEMO ?=
# Arguments of pytest, as in: make test TESTS="tests/plan -k window"
TESTS ?=

.PHONY: help env demo test test-slow lint format servers clean

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

env: $(MADE) ## Make the environment

$(MADE): pyproject.toml constraints.txt
	@echo "Making the environment $(VENV): this takes some minutes the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(MADE)

demo: $(MADE) ## Train from an object store on this machine, kill everything, go on
	$(BIN)/python examples/demo.py $(DEMO)

test: $(MADE) ## Run the tests, but for the slow ones
	$(BIN)/python -m pytest $(TESTS)

test-slow: $(MADE) ## Run all tests, the slow ones as well
	STREAMIO_SLOW=1 $(BIN)/python -m pytest --slow $(TESTS)

lint: $(MADE) ## Check formatting, style and types
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

format: $(MADE) ## Format the code, and mend what can be mended by itself
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

servers: $(MADE) ## Install the object stores that tests and demo start
	$(BIN)/python localstack/serve.py --prepare seaweedfs gcs localstack moto

clean: ## Remove the environment and what tools have cached; installed servers stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
