# Each target makes its virtual environment, installs what it needs with uv, or else pip, and runs.
# A second call installs nothing, until pyproject.toml or the interpreter changes.

PYTHON ?= python3
ARGS ?=

VENV := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(lastword $(PYTHON))))
PY := $(VENV)/bin/python
UV := $(shell command -v uv 2>/dev/null)

.PHONY: help demo test test-rest new check durations test-tpu compile-for-tpus docs docs-data docs-test test-processors lint bench bench-here bench-with-libtpu speed tables clean FORCE
.NOTPARALLEL:

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile
	@echo 'Options: ARGS="..." is passed on; PYTHON=python3.13 runs in .venv-python3.13.'

demo: $(VENV)/.installed-examples ## Train a small network on the digits: make demo ARGS="--epochs 3"
	$(PY) examples/train_digits.py $(ARGS)

PYTEST = $(PY) -m pytest -n auto --maxprocesses 8 --dist loadgroup --no-loadscope-reorder
# Of ARGS, what selects tests by itself: from all of them, not from a tier.
selection = $(filter -k% -m% tests% ./tests% %.py,$(ARGS))

test: $(VENV)/.installed-test ## Run the tests that are quick, and what a change touches: make test ARGS="-k adam"
	$(PYTEST) $(if $(selection),,-m "not long") $(ARGS)

test-rest: $(VENV)/.installed-test ## Run the tests that `make test` leaves out
	$(PYTEST) -m long $(ARGS)

new: $(VENV)/.installed-test ## Write the files of a new part: make new RULE=adax, WRAPPER=... or SCHEDULE=...
	$(PY) -m tests.project.new $(if $(RULE),rule $(RULE),$(if $(WRAPPER),wrapper $(WRAPPER),schedule $(SCHEDULE)))

check: $(VENV)/.installed-test ## Run all tests that concern one name: make check NAME=adamw
	$(PY) -m tests.project.check $(NAME) -n auto --maxprocesses 8 --dist loadgroup $(ARGS)

durations: $(VENV)/.installed-test ## Run all tests, and write which are long into tests/durations.json
	$(PYTEST) --write-durations anew
	$(PYTEST) --write-durations longer -m "not long"

# What pages draw is kept in .docs_cache. Material announces its successor in every build.
docs: $(VENV)/.installed-docs ## Build the documentation into site/: make docs ARGS=serve serves it
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs $(or $(ARGS),build) --strict

docs-data: $(VENV)/.installed-docs ## Run what the site shows of each part anew (long): make docs-data ARGS="adam"
	$(PY) -m docs.site.recorded $(ARGS)

docs-test: $(VENV)/.installed-docs ## Run the code of the documentation: make docs-test ARGS="-k sparse"
	$(PY) -m pytest docs/tests -n auto --maxprocesses 8 --dist loadgroup $(ARGS)

# Vector instructions, threads and devices: each with each number of threads. XLA has no float16 below
# AVX, and takes the widest that there is where the processor has no AVX-512.
PROCESSORS := AVX:1:8 AVX:2:1 AVX2:1:1 AVX2:2:2 AVX512:1:2 AVX512:2:8

test-processors: $(VENV)/.installed-test ## Run the tests of numbers as on other processors (long)
	@for processor in $(PROCESSORS); do \
	  set -- $$(echo $$processor | tr : ' '); echo "== $$1, $$2 thread(s), $$3 device(s)"; \
	  PJRT_NPROC=$$2 \
	  XLA_FLAGS="--xla_cpu_max_isa=$$1 --xla_force_host_platform_device_count=$$3" \
	  $(PYTEST) -m numeric $(ARGS) || exit 1; \
	done

# In an environment of its own: with libtpu, JAX looks for a TPU wherever it starts.
test-tpu: ## Compile programs for TPUs, without one (long)
	$(MAKE) --no-print-directory VENV=$(VENV)-tpu compile-for-tpus

compile-for-tpus: $(VENV)/.installed-test,tpu
	ALLOW_MULTIPLE_LIBTPU_LOAD=1 TPU_SKIP_MDS_QUERY=1 \
	  $(PY) -m pytest -n auto --maxprocesses 8 tests/distributed/programs/test_tpu.py $(ARGS)

lint: $(VENV)/.installed-dev ## Check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) -m pyright --pythonpath $(PY) --project tests/typing

bench: ## Measure beside Optax
	$(MAKE) --no-print-directory $(if $(filter tpu backward,$(ARGS)),VENV=$(VENV)-tpu bench-with-libtpu,bench-here)

bench-here: $(VENV)/.installed-examples
	$(PY) -m benchmarks $(ARGS)

bench-with-libtpu: $(VENV)/.installed-examples,tpu
	JAX_PLATFORMS=cpu $(PY) -m benchmarks $(ARGS)

speed: $(VENV)/.installed-examples ## Measure what docs/speed.md shows, and write its tables anew
	$(PY) -m benchmarks optimizers storage model
	$(PY) -m benchmarks.tables.page

tables: $(VENV)/.installed-test ## Write the tables of names, optimizers, compositions and differences anew, and the picture of the house
	$(PY) -m tests.project.names
	$(PY) -m gradxform list optimizers --markdown --into docs/optimizers.md
	$(PY) -m gradxform port --table > docs/differences.md
	$(PY) -m docs.site.compositions
	$(PY) -m docs.site.found
	$(PY) -m docs.site.families
	$(PY) -m docs.site.traits
	$(PY) -m tests.project.layout

clean: ## Remove environments, caches and builds
	rm -rf .venv .venv-* .venv.lock dist build site .docs_cache .hypothesis .programs .pytest_cache \
	  .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two makes at once take turns to install (where the system has flock).
lock = exec 9>$(VENV).lock; if command -v flock >/dev/null; then flock 9; fi

# Which interpreter the environment is made of, and where; made anew when the answer changes.
identity = import os, sys; sys.version_info < (3, 11) and sys.exit(1); \
  print(sys.version, sys.base_prefix, os.getcwd())

$(VENV)/.interpreter: FORCE
	@now=$$("$(PYTHON)" -c '$(identity)' 2>/dev/null) || \
	  { echo '$(PYTHON) is not Python 3.11 or later; choose one: make PYTHON=python3.13' >&2; exit 1; }; \
	$(lock); \
	if [ "$$now" != "$$(cat $@ 2>/dev/null)" ]; then \
	  echo 'Making $(VENV)'; \
	  $(if $(UV),exe=$$("$(PYTHON)" -c 'import sys; print(sys.executable)') && \
	    uv venv --quiet --clear --seed --no-python-downloads --python "$$exe" $(VENV),\
	    "$(PYTHON)" -m venv --clear $(VENV)) && \
	  printf '%s\n' "$$now" >$@; \
	fi

$(VENV)/.installed-%: pyproject.toml $(VENV)/.interpreter
	@echo 'Installing gradxform[$*] in $(VENV)'; $(lock); \
	$(if $(UV),uv pip install --quiet --python $(PY),\
	  $(PY) -m pip install --quiet --disable-pip-version-check) --editable '.[$*]' && touch $@
