# One command each; `make` alone lists them. PYTHON chooses the interpreter of a new environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Python up to 3.12 reads the path of an editable install in the locale's encoding, C's is ASCII.
ifeq ($(LC_ALL),C)
export LC_ALL := C.UTF-8
endif
# Every job begins with the same imports, which Python would compile each time.
unexport PYTHONDONTWRITEBYTECODE
# Snakemake and the hub keep caches in the home folder: where it cannot be written, they lie here.
export XDG_CACHE_HOME ?= $(shell mkdir -p "$$HOME/.cache" 2>/dev/null && test -w "$$HOME/.cache" && \
	echo "$$HOME/.cache" || echo "$(CURDIR)/.cache")

.PHONY: help demo test test-fast mutants test-gpu test-slurm lint docs schema format lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# The stamp is remade when the pins change, and only then.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,slurm]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,slurm,docs]'
	touch $@

demo: $(VENV)/installed  ## distil the embedded teacher and write results/demo/report/index.html
	snakemake --cores all
	@echo "open results/demo/report/index.html"

# Two workers per core, since many tests wait for processes of their own. A file stays with
# one worker, since its tests share what they made.
WORKERS := $(shell echo $$(($$(nproc) * 2)))
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/installed-dev  ## run the tests, on all cores
	python -m pytest $(PARALLEL)

test-fast: $(VENV)/installed-dev  ## run those that take a minute together
	python -m pytest $(PARALLEL) -m "not slow and not gpu and not slurm"
	@echo "left out: real Snakemake runs, trainings of several processes, every family, other slow tests"

mutants: $(VENV)/installed-dev  ## change the code in 150 small ways; does a test notice each?
	PYTHONPATH=tests python -m mutation

test-gpu: $(VENV)/installed-dev  ## run the tests that need GPUs, two for all of them
	python -m pytest -m gpu

test-slurm: $(VENV)/installed-dev  ## run the demo through a real SLURM on this machine (needs root)
	python -m pytest -m slurm tests/slurm

lint: $(VENV)/installed-dev  ## ruff, mypy and snakefmt; snakemake's own linter is one of the tests
	ruff check
	ruff format --check
	mypy
	snakefmt --check Snakefile rules

docs: $(VENV)/installed-docs  ## build the documentation site in site/; opens from the disk
	NO_MKDOCS_2_WARNING=1 mkdocs build
	@echo "open site/index.html"

schema: $(VENV)/installed-dev  ## regenerate the configuration's JSON schema and reference page
	python tools/schema.py

format: $(VENV)/installed-dev  ## rewrite the code in the house format
	ruff check --fix
	ruff format
	snakefmt Snakefile rules

lock: $(VENV)/installed-docs  ## write the versions of this environment to constraints.txt
	python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:  ## remove the environment and caches; results stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
