# One command per job; nothing but python3 (3.11 or later) and make is assumed.  `make help` lists them.
#
# TORCH says which torch goes into .venv.  Unset: the pinned version of constraints.txt.
#   make install TORCH=system            use the torch this python3 already has
#   make install TORCH=/path/torch.whl   a wheel of your own
#   make install TORCH='torch==2.11.0'   any pip requirement, with any pip options

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
TORCH   ?=
DURATION ?= 5m
MODEL   ?= qwen3-next
SOAK    ?=
SEEDS   ?= 5
SAMPLE  ?= 0
SEED    ?= 0
JOBS    ?= auto
RECORDINGS ?= results/limits
# What the plan of test-released soaks and compares.
RELEASES := $(addprefix sglang-cache==,0.5.9 0.5.10.post1 0.5.12.post1 0.5.13 0.5.14) llamacpp==2026.10.11549 vllm==0.32.0
# What `make gpu` takes along to a machine that has PyTorch and Triton, but no network.
GPU_WHEELS ?= .gpu-wheels
GPU_NEEDS := aiohttp annotated-types jinja2 msgspec numpy packaging prometheus-client psutil pydantic pyyaml rich safetensors typer \
	hypothesis pytest pytest-timeout pytest-xdist fla-core einops
GPU_PLATFORMS := $(addprefix --platform ,manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux1_x86_64)
# What test-fast leaves out: heap scans, workers, other processes, measuring programs, Triton's
# interpreter, the command line, and the slowest sweeps.
NOT_FAST := sampling worker benchmarks test_packaging.py runs/test_defect_catalog.py cli load engine/kernels \
	targets/test_prepare.py compare/test_sides.py engine/cache/test_reference_cycle.py engine/models/test_families.py \
	$(addprefix analysis/,test_awkward_runs.py test_awkward.py test_boundary.py test_families.py trend/test_estimate.py \
	trend/test_random_walk.py) report/test_page_truth.py runs/test_soak.py defects/test_mutants.py
# Images often forbid bytecode; then every process of a test compiles all it imports anew.
test test-fast test-changed test-deep-laws test-deep-rest test-soak: export PYTHONDONTWRITEBYTECODE :=
# What test-changed compares the working tree with.
BASE    ?= main
PYTEST  := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
PIP     := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=$(CURDIR)/$(VENV)/constraints.txt $(BIN)/python -m pip

.PHONY: help wheel install install-test soak selftest recall test test-fast test-changed test-deep test-deep-laws test-deep-rest test-soak test-released coverage test-browser check man bench limits gpu gpu-wheels docs fmt clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## Make .venv and install hybridbench into it

install-test: $(VENV)/.installed-test  ## The same with everything the tests and checks need

$(VENV)/.base: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "hybridbench needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V)"; exit 2; }
	$(PYTHON) -m venv $(if $(filter system,$(TORCH)),--system-site-packages) $(VENV)
	@# Whoever brings a torch of his own must not be held to the pinned one.
	grep -v $(if $(TORCH),'^torch==','^$$') constraints.txt > $(VENV)/constraints.txt
	$(if $(filter system,$(TORCH)),$(BIN)/python -c 'import torch; print("using torch", torch.__version__)',$(PIP) install -q $(if $(TORCH),$(TORCH),torch))
	@touch $@

$(VENV)/.installed: $(VENV)/.base pyproject.toml
	$(PIP) install -q -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.base pyproject.toml
	$(PIP) install -q -e '.[test,dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install -q -e '.[docs]'
	@touch $@

soak: install  ## A short soak of MODEL with a report (DURATION=5m, SOAK='more options')
	$(BIN)/hybridbench soak --model $(MODEL) --duration $(DURATION) $(SOAK)

selftest: install  ## The bench tried on itself: exact defects, a trend and healthy twins (29 minutes of traffic, three soaks at a time on two cores)
	$(BIN)/hybridbench selftest --quick

recall: install-test  ## Recall over SAMPLE mutants of the engine (all: 0) drawn with SEED, in build/recall; resumable
	@mkdir -p build
	$(BIN)/hybridbench selftest --mutants --sample $(SAMPLE) --seed $(SEED) \
		--store build/recall --resume --markdown build/recall/recall.md

test: install-test  ## The whole suite but slow, soak and gpu tests, on all cores (JOBS=1: on one)
	$(PYTEST) -m "not slow and not soak and not gpu"

test-fast: install-test  ## A minute for the inner loop: units without kernels, processes and the command line, tidiness, the first law of the engine
	$(PYTEST) -m "not slow and not soak and not gpu" \
		tests/unit tests/tidy tests/laws/test_engine_equals_no_reuse.py $(addprefix --ignore=tests/unit/,$(NOT_FAST))

test-changed: install-test  ## Those of `make test` that can reach what differs from BASE (main) in the working tree
	tests=$$($(BIN)/python -m tools.changed_tests $(BASE)) && $(PYTEST) -m "not slow and not soak and not gpu" $$tests

test-deep: test-deep-laws test-deep-rest test-soak  ## The next three, one after another: every test that needs no GPU

test-deep-laws: install-test  ## The laws of the engine with 1,000 Hypothesis examples and programs of thousands of actions
	HYPOTHESIS_PROFILE=deep $(PYTEST) -m "not gpu" tests/laws

test-deep-rest: install-test  ## The slow tests of everything else: estimators by the thousand, damaged inputs, comparisons
	HYPOTHESIS_PROFILE=deep $(PYTEST) -m "not gpu and not soak" tests --ignore=tests/laws

test-soak: install-test  ## Soaks of minutes with known verdicts; compare and bisect over commits
	$(PYTEST) -m soak tests/scenarios

test-released: install  ## Released engines: prepares what pip can have here, then the plan in docs/how-to/examples (an hour)
	for target in $(RELEASES); do $(BIN)/hybridbench target prepare $$target || echo "$$target is left out: its cells cannot start"; done
	$(BIN)/hybridbench nightly run docs/how-to/examples/released.yaml --out build/released

coverage: install-test  ## Which lines of the package `make test` runs in its own processes, in build/coverage
	$(PYTEST) -m "not slow and not soak and not gpu" --cov=hybridbench --cov-report=html:build/coverage --cov-report=term:skip-covered

test-browser: install-test  ## The report in a real browser (Debian: apt-get install chromium)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { echo "there is no chromium here: 'apt-get install chromium' on Debian, then make test-browser again"; exit 2; }
	$(BIN)/python -m pytest -m browser tests/scenarios

check: install-test  ## Format, lint, types, layers, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml docs/how-to/examples/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml

wheel: install-test  ## Both wheels, in dist: hybridbench, and hybridbench-core, the same without torch
	@mkdir -p dist
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m tools.core_wheel dist

man: install  ## The man page, in build/man
	@mkdir -p build/man/man1
	PYTHONPATH=. $(BIN)/python tools/man_page.py build/man/man1/hybridbench.1

bench: install-test  ## The benchmarks whose numbers docs/ quotes
	$(BIN)/python -m benchmarks cache
	$(BIN)/python -m benchmarks step
	$(BIN)/python -m benchmarks engine
	$(BIN)/python -m benchmarks kernels

limits: install  ## The table of growth by duration, from SEEDS=5 recordings of 20 minutes a profile (3.5 hours; resumable)
	$(BIN)/python -m benchmarks limits --growth --seeds $(SEEDS) --store $(RECORDINGS)

gpu:  ## A page of results from a CUDA device, in 8 minutes: GPU tests, soaks, benchmarks (PYTHON=python3 that has a torch for it)
	$(PYTHON) -m tools.gpu_page $(if $(wildcard $(GPU_WHEELS)/*.whl),--wheels $(GPU_WHEELS))

gpu-wheels:  ## What make gpu needs on a machine without network (Python 3.12, x86-64), in .gpu-wheels
	rm -rf $(GPU_WHEELS)
	PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PYTHON) -m pip download -q --only-binary=:all: --python-version 3.12 --implementation cp $(GPU_PLATFORMS) -d $(GPU_WHEELS) $(GPU_NEEDS)

docs: $(VENV)/.installed-docs  ## Build the site of docs/ into build/site, with reference pages from the code
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

fmt: install-test  ## Format and sort what can be mended by machine
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:  ## Remove .venv, .gpu-wheels and caches (results/ stays)
	rm -rf $(VENV) $(GPU_WHEELS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
