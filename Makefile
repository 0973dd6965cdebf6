# Everything a developer types. The virtual environment is made on first use and follows pyproject.toml.

# The first Python that is new enough; `make PYTHON=/path/to/python3.12 ...` overrides the search.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && command -v "$$name" && break; done)
# Where a virtual environment has its commands; on Windows make runs in Git Bash.
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
VENV := .venv/.made
RUNTIME := .venv/.runtime
DEV := .venv/.dev
# Type checkers name a module by its folders, so that they need one with the name of the package.
SOURCES := build/src/anabranch
CUDA := .venv/.cuda
PORTABLE := .venv/.portable

# An editable install warns about the very layout that the tests check; quiet, so that what matters stands out.
INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Tests compare results, not speed: one BLAS thread a process leaves the cores to pytest's two processes. A file's tests
# run in one of them: what a test compiled is at hand for the next, and handing out files costs less than single tests.
# Tests start many processes, so modules are kept as bytecode, also where the environment says otherwise.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Clients of the model server, and what to install for each: they want other versions of protobuf than the server.
CLIENTS := triton kserve openai
PACKAGES_triton := 'tritonclient[http,grpc]'
PACKAGES_kserve := kserve
PACKAGES_openai := openai

.DEFAULT_GOAL := help
.PHONY: help demo demo-cluster test test-all test-portable test-cuda sweep bench bench-threads gpu peers clients lint types types-package imports docs docs-check format wheel dist-check lowest clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(RUNTIME) ## train a character model with a custom recurrent cell, save it, load it, generate text
	OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 $(BIN)/python examples/character_model.py

demo-cluster: $(RUNTIME) ## train on several processes: by graphs that span two tasks, and by fit on two workers, with ps tasks and by all-reduce
	OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 $(BIN)/python examples/two_tasks.py
	$(BIN)/python -m anabranch launch -n 2 --ps 2 examples/cluster_training.py
	$(BIN)/python -m anabranch launch -n 2 --ps 0 examples/cluster_training.py --all-reduce

test: lint types-package imports docs-check ## lint, types of the package, import rules, links of the documentation, and tests
	$(PYTEST) $(ARGS)

test-all: lint types imports docs ## the same with the slow tests, many more random programs, and clients of the server
	-$(MAKE) --no-print-directory --keep-going clients # tests of those that can't be installed are skipped
	$(PYTEST) -m "" --hypothesis-profile=all $(ARGS)

test-portable: $(PORTABLE) ## tests of layers, optimizers and values, which need no shared memory or Unix sockets: for macOS and Windows
	$(PYTEST) tests/layers tests/optim tests/values $(ARGS)

test-cuda: $(CUDA) ## compile all that is printed as CUDA for each architecture by NVRTC, and run it on the host; needs no GPU
	ANABRANCH_TEST_NVRTC=1 $(PYTEST) -m "" tests/engine/test_cuda_*.py $(ARGS)

sweep: $(DEV) ## 100,000 simulations each of the protocols of tasks, of replicas and of groups, 10,000 of storage, by seed; 100 faults on fit of each of four kinds, in 20 minutes each
	ANABRANCH_SIMULATIONS=100000 $(PYTEST) -m slow -k "many_simulations or at_length" tests/distribute/test_simulation.py \
		tests/engine/test_replica_state.py tests/engine/test_replica_supply.py tests/engine/test_replica_exchanges.py \
		tests/distribute/test_simulated_storage.py tests/distribute/test_membership.py $(ARGS)
	ANABRANCH_FAULTS=100 $(PYTEST) -n 0 -m slow tests/distribute/test_faults_on_fit.py $(ARGS)

bench: $(DEV) ## run the benchmarks, beside the peers where `make peers` has installed them
	$(BIN)/python tests/benchmarks/run.py $(ARGS)

bench-threads: $(DEV) ## loops and products of 40 shapes on several threads against one: none is to take longer on more
	$(BIN)/python tests/benchmarks/thread_counts.py $(ARGS)

gpu: $(DEV) ## on a machine with a GPU: its tests, benchmarks beside PyTorch and JAX on CUDA, memory that swaps, into docs/gpu-results.md
	@$(BIN)/python tests/benchmarks/gpu.py --check
	$(PYTEST) -n 0 -m "" tests/engine/test_gpu_*.py tests/engine/test_machine_gpu.py tests/engine/test_devices_gpu.py
	$(PYTEST) -n 0 -m "" tests/distribute/test_nccl_hardware.py tests/distribute/test_gpu_*.py
	$(BIN)/python tests/benchmarks/gpu.py $(ARGS)

peers: ## make the environments of the peers that the benchmarks compare with (large)
	bash tests/benchmarks/peers/make_env.sh

clients: $(CLIENTS:%=.venv/clients/%/.made) ## make the environments of the clients that tests ask the model server with

lint: $(DEV) ## ruff: rules and format; codespell: spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types-package: $(DEV) ## pyrefly over the package and the examples: strict in engine/
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --relative-to $(CURDIR)/$(SOURCES) --summary=none

types: types-package ## the same, and pyright over the tests, which use the package as users do
	$(BIN)/pyright

imports: $(DEV) ## import-linter: layers of the house, third-party packages confined
	$(BIN)/lint-imports --no-cache

docs: $(DEV) ## build the site of the documentation into build/site/VERSION, warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/site/mkdocs.yml

docs-check: $(DEV) ## the same without what readers alone need, such as the search, colours of code and signatures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/site/check.yml

format: $(DEV) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(DEV) ## build the wheel and the sdist into dist/
	rm -rf build dist # setuptools would put modules deleted since into the next wheel
	$(BIN)/python -m build --no-isolation

dist-check: wheel ## check the wheel and the sdist, install the wheel elsewhere and use it there
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	rm -rf build/tried && "$(BIN)/python" -m venv build/tried
	build/tried/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build && tried/bin/python -I ../.ci/try_wheel.py

lowest: $(VENV) ## run the tests with the lowest versions of all dependencies that are declared, in an environment of its own
	rm -rf build/lowest && mkdir -p build && "$(BIN)/python" -m venv build/lowest
	$(BIN)/python .ci/lowest.py > build/lowest/constraints.txt
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check -c build/lowest/constraints.txt \
		--editable '.[serve,images,sklearn,onnx,rl,remote]' pytest pytest-xdist hypothesis mpmath
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 build/lowest/bin/python -m pytest -q -n 2 --dist loadfile \
		--ignore tests/repository $(ARGS)

clean: ## remove everything that is made here, the virtual environment included
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './tests/benchmarks/peers/.*' -prune -exec rm -rf {} +

$(VENV):
	@test -n "$(PYTHON)" || { echo "anabranch needs Python 3.11 or newer and found none on PATH." \
		"Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anabranch needs Python 3.11 or newer;" \
		"$(PYTHON) is not. Name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/pip || "$(PYTHON)" -m venv .venv || { echo "Could not make .venv." \
		"On Debian and Ubuntu the venv module is a package of its own: apt install python3-venv" >&2; exit 1; }
	$(INSTALL) --upgrade pip
	@touch $@

$(RUNTIME): $(VENV) pyproject.toml
	$(INSTALL) --editable .
	@touch $@

$(DEV): $(VENV) pyproject.toml | $(SOURCES)
	$(INSTALL) --editable '.[dev,examples]'
	@touch $(RUNTIME) $@

$(SOURCES):
	mkdir -p $(@D) && ln -sfn ../.. $@

# Not all that developers use can be installed everywhere.
$(PORTABLE): $(RUNTIME)
	$(INSTALL) pytest pytest-xdist hypothesis mpmath
	@touch $@

$(CUDA): $(DEV)
	$(INSTALL) --editable '.[cuda-check]'
	@touch $@

.venv/clients/%/.made: | $(VENV)
	$(BIN)/python -m venv .venv/clients/$*
	PYTHONWARNINGS=ignore .venv/clients/$*/bin/python -m pip install --quiet --disable-pip-version-check $(PACKAGES_$*)
	@touch $@
