# Two commands on a fresh machine: `make demo` and `make test`. Each creates .venv first.
PYTHON ?= python3
VENV := .venv
# data/ and models/ of benchmarks and experiments, see the README
SHARED ?= ../shared
BIN := $(VENV)/bin

# Where it is set, every process would compile all modules that it imports, which takes longer than many tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint types paper-small

demo: $(VENV)/ready
	$(BIN)/cobasin demo --out demo-out --overwrite

# The paper's experiments, reduced, each with its expected time; see docs/paper.md.
paper-small: $(VENV)/ready
	HF_HUB_OFFLINE=1 $(BIN)/python experiments/run.py all --small --shared $(SHARED)

# One thread a worker, also to load a model: tests run side by side on tiny tensors.
PYTEST := OMP_NUM_THREADS=1 HF_DEACTIVATE_ASYNC_LOAD=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2

test: $(VENV)/ready
	$(PYTEST)

# Also those of which make test takes a sample.
test-all: $(VENV)/ready
	$(PYTEST) -m ""

lint: $(VENV)/ready
	$(BIN)/ruff check src tests benchmarks experiments docs examples
	$(BIN)/ruff format --check src tests benchmarks experiments docs examples

types: $(VENV)/ready
	$(BIN)/pyright --pythonpath $(BIN)/python

# By the exact version pip takes the CPU build where an index has one; a range would take the build with CUDA.
# Modules are compiled when they are first imported, which most of them never are.
$(VENV)/ready: pyproject.toml constraints.txt
	@echo "creating $(VENV), which takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade 'pip>=25.1'
	$(BIN)/pip install -qq --no-compile --constraint constraints.txt torch
	$(BIN)/pip install -qq --no-compile --constraint constraints.txt --editable '.[demo,data,evaluation,ray]' --group dev
	touch $@
