# `make help` lists the targets. PYTHON=python3.12 picks another interpreter for a new .venv,
# ARGS="-k rope -x" goes to pytest, WORKERS=0 runs the tests in one process.
PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=
STUDY   ?= quickstart
# Of a part of the benchmarks no results are kept: they would take the place of the whole.
RESULTS ?= $(if $(ARGS),.benchmarks/part.json,$(shell $(BIN)/python benchmarks/report.py --name))

VENV := .venv
LOWEST := .venv-lowest
comma := ,
BIN  := $(VENV)/bin
# As a variable, and not as an option, the constraints hold for what builds the package as well.
# -qq shows errors only: what pip has to say about its indexes is not what the user asked for.
PIP  := PIP_CONSTRAINT='$(CURDIR)/constraints.txt' $(BIN)/python -m pip --disable-pip-version-check install -qq
PYTEST   := $(BIN)/python -m pytest
SAMPLE   := docs/examples/paribus-sample
PARALLEL := -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-thorough numerics test-extras test-matrix test-device test-processors processors-avx2 processors-default test-lowest test-rendering test-slurm test-ray test-launchers lint format docs site frozen-text parity baselines error-rates results bench bench-peers slow test-seeds test-faults faults measure-faults peers gpu gpu-bundle constraints wheel clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(VENV)/.installed  ## make .venv with paribus in it, editable

quickstart: $(VENV)/.installed  ## install, run the first study, print its verdict table
	$(BIN)/paribus run quickstart

test: $(VENV)/.installed-test  ## the tests that run each time; the others have targets of their own (gpu ones skip without a GPU)
	$(PYTEST) $(PARALLEL) --durations=10 $(ARGS)

numerics: $(VENV)/.installed-test  ## prove that an edited engine computes the epoch's numbers; ARGS=--check, ARGS='--raise "what changed"'
	@$(BIN)/python -m tests.numerics.replay $(ARGS)

test-thorough: $(VENV)/.installed-test  ## the cases and the longer tests that `make test` leaves out; the gate runs all
	$(PYTEST) $(PARALLEL) -m thorough --durations=10 $(ARGS)

test-extras: $(VENV)/.installed-test-extras  ## the tests that need optional dependencies, none of which may be skipped
	$(PYTEST) $(PARALLEL) -m extras --forbid-skips $(ARGS)

test-matrix: $(VENV)/.installed-test  ## every cell of attention × position × placement × norm × feedforward × topology
	$(PYTEST) -n $(WORKERS) -m matrix --timeout 1800 $(ARGS)

test-device: $(VENV)/.installed-test  ## train, evaluate and generate with every preset on a simulated accelerator
	$(PYTEST) $(PARALLEL) -m device --forbid-skips tests/device tests/core/paribus/inference $(ARGS)

# The numeric tests that take little time, and what every component does in half precision.
NUMERIC := $(addprefix tests/plugins/,test_half_precision.py paribus_attention paribus_position paribus_norm paribus_feedforward) \
    $(addprefix tests/core/paribus/,kernels inference/test_generate.py inference/test_decoder.py \
    $(addprefix parts/test_,appended.py attend.py autocast_operation.py chunked_loss.py heads.py stack.py))
OMITTED := compile flop every_option decoding_step processes loop_implementation formula unfused
empty :=
numeric_tests = $(PYTEST) -m 'not slow and not gpu and not matrix' \
    -k 'not $(subst $(empty) $(empty), and not ,$(OMITTED))' $(NUMERIC) $(ARGS)

test-processors: $(VENV)/.installed-test  ## numeric tests on stand-ins for older processors, without AVX-512 and without AVX
	$(MAKE) --no-print-directory --output-sync=target -j$(or $(WORKERS:0=),1) processors-avx2 processors-default

processors-avx2:
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(numeric_tests)

processors-default:
	ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default $(numeric_tests)

test-lowest: $(LOWEST)/.installed  ## the tests with the lowest versions of the dependencies that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest $(PARALLEL) --ignore tests/hf_parity $(ARGS)

test-rendering: $(VENV)/.installed-test  ## open reports in Chromium, compile tables with LaTeX (Debian: installs both, as root)
	tests/rendering/install.sh
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m rendering --forbid-skips $(ARGS)

test-slurm: $(VENV)/.installed-test  ## start a real Slurm (as root, Debian) and run studies on it; none may be skipped
	tests/clusters/slurm.sh start
	$(PYTEST) tests/plugins/paribus_launch/test_real_slurm.py -m slurm --forbid-skips $(ARGS); \
	    status=$$?; tests/clusters/slurm.sh stop && exit $$status

test-ray: $(VENV)/.installed-test-ray  ## start a Ray cluster of two nodes and run a study on it
	$(PYTEST) tests/plugins/paribus_launch/test_ray_nodes.py -m '' --forbid-skips $(ARGS)

test-launchers: $(VENV)/.installed-test-ray  ## with Ray installed: one study through local, ray and slurm, in any order
	$(PYTEST) tests/plugins/paribus_launch tests/faults/test_ray_kills.py -m 'not slurm' --timeout 1800 $(ARGS)

lint: $(VENV)/.installed-dev  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(SAMPLE) $(BIN)/mypy $(shell find core plugins tests benchmarks tools -name '*.py' 2>/dev/null | cut -d/ -f1 | sort -u) docs/*.py $(SAMPLE)/*/
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed  ## write docs/components.md and docs/traits.md anew
	$(BIN)/python docs/components.py

site: $(VENV)/.installed-docs  ## build the documentation site in build/site; a warning fails it
	$(BIN)/python docs/build_site.py

frozen-text: $(VENV)/.installed  ## write the text of python-docs anew, from .venv's Python: another one makes records stale
	$(BIN)/python tools/freeze_python_docs.py

parity: $(VENV)/.installed-test  ## compare converted models with transformers, and write docs/parity.md
	PARIBUS_PARITY_TABLE=docs/parity.md $(PYTEST) tests/hf_parity $(ARGS)

baselines: $(VENV)/.installed-test  ## train every system in its tiny size, and write docs/baselines.md anew
	PARIBUS_BASELINES_TABLE=docs/baselines.md $(PYTEST) tests/plugins/paribus_presets/test_baselines.py -m slow $(ARGS)

error-rates: $(VENV)/.installed-test  ## simulate the error rates of verdicts, and write docs/error-rates.md anew
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/error_rates.py

results: $(VENV)/.installed-test  ## run a shipped study, STUDY=quickstart, and write its results and records anew
	-$(BIN)/paribus run $(STUDY)
	-$(BIN)/paribus compare $(STUDY) --results ablations/$(STUDY)
	$(if $(filter quickstart,$(STUDY)),$(BIN)/python docs/picture.py)

bench: $(VENV)/.installed-bench  ## the benchmarks, one thread; a table, and results to benchmarks/results/
	@mkdir -p '$(dir $(RESULTS))'
	OMP_NUM_THREADS=1 $(PYTEST) benchmarks -o python_files='bench_*.py' -o filterwarnings= -m '' --timeout 0 \
	    --benchmark-json='$(RESULTS)' --benchmark-quiet $(ARGS); \
	    status=$$?; $(BIN)/python benchmarks/report.py $(if $(ARGS),--print) '$(RESULTS)' && exit $$status

bench-peers: $(VENV)/.installed-peers  ## beside other libraries: whole runs, and peer_steps.py with ARGS="--part steps"; tables
	$(BIN)/python benchmarks/whole_runs.py
	$(BIN)/python benchmarks/peer_steps.py $(ARGS)

slow: $(VENV)/.installed-test  ## the slow tests; ARGS="--shard 1/4" runs the first quarter
	$(PYTEST) $(PARALLEL) -m 'slow and not slurm' --timeout 1800 $(ARGS)

test-seeds: $(VENV)/.installed-test  ## every component with 20 other seeds of the conformance kit: hours; none may fail
	PARIBUS_CONFORM_SEEDS=1 $(PYTEST) -n $(WORKERS) -m slow --timeout 1800 \
	    tests/core/paribus/testing/test_conform.py -k other_draws $(ARGS)

test-faults: $(VENV)/.installed-test  ## every row of the table of faults, kills, full disks and fuzz; writes docs/reliability.md
	PARIBUS_RELIABILITY_TABLE=docs/reliability.md \
	    $(PYTEST) $(PARALLEL) -p tests.faults.reliability -m 'faults or held' --timeout 1800 \
	    $$($(BIN)/python -m tests.faults.table) $(ARGS)

faults: test-faults

measure-faults: $(VENV)/.installed-test  ## run all checks on the faults of independent authors; writes .benchmarks/faults.jsonl
	@mkdir -p .benchmarks
	PARIBUS_FAULT_RESULTS='$(CURDIR)/.benchmarks/faults.jsonl' \
	    $(PYTEST) -n $(WORKERS) -m slow tests/core/paribus/testing/test_mutants.py -k independent_fault --timeout 1800 $(ARGS)

peers: $(VENV)/.installed-test  ## measured against other libraries
	$(PYTEST) -m peers --timeout 1800 $(ARGS)

gpu: $(VENV)/.installed-test  ## the tests that need a CUDA device
	$(PYTEST) -m gpu --timeout 1800 $(ARGS)

gpu-bundle: $(VENV)/.installed-test  ## write dist/gpu, a folder for a GPU machine without a network; ARGS="--python 3.12"
	$(BIN)/python benchmarks/gpu_bundle.py $(ARGS)

constraints: $(VENV)/.installed-dev  ## write constraints.txt anew from .venv
	$(BIN)/python -m pip freeze --all --exclude-editable --exclude pip \
	    | sed -E 's/\+[a-z0-9.]+$$//' > constraints.new
	{ sed -n '/^#/p' constraints.txt; cat constraints.new; } > constraints.tmp
	rm constraints.new
	mv constraints.tmp constraints.txt

wheel: $(VENV)/.installed-test  ## build the wheel into dist/
	$(BIN)/python -m hatchling build -t wheel

clean:  ## remove .venv, builds and caches (never runs/)
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks

# ------------------------------------------------------------------- what is installed, once for each change of the two
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"python must be 3.11 or newer, but $(PYTHON) is {sys.version.split()[0]}; valid: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing paribus into $(VENV) (the first time takes some minutes)'
	$(PIP) -e .
	@touch $@

$(LOWEST)/.installed: pyproject.toml constraints.txt tests/lowest_requirements.py
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tests/lowest_requirements.py > $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install -qq -r $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install -qq --no-deps -e .
	@touch $@

# `.installed-test-ray` installs the extras `test` and `ray`.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing paribus[$(subst -,$(comma),$*)] into $(VENV) (the first time takes some minutes)'
	$(PIP) -e '.[$(subst -,$(comma),$*)]'
	@touch $@ $(VENV)/.installed
