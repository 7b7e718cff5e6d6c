# Every target makes its own environment in .venv first; see tools/setup-env.sh.
#   ARGS=...     passed on to the command of the target
#   PYTHON=...   the Python to make .venv with (default: the newest fitting python3 found)
#   WORKERS=...  how many processes run the tests

SHELL   := /bin/bash
unexport PYTHONDONTWRITEBYTECODE # else each process of the tests rewrites all plugins anew
ARGS    ?=
PYTHON  ?=
WORKERS ?= 3
RUN     := .venv/bin
SETUP   := @PYTHON="$(PYTHON)" tools/setup-env.sh
# The analyser also begins at functions of headers, but bounded: half a minute, not many.
DEEP    := $(addprefix -Xclang ,-analyzer-opt-analyze-headers -analyzer-config mode=shallow,max-nodes=8000)
CHECKED := wheeld core client pipeline testing tests tools bench proofs examples setup.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-fast c-client bench torture sweep check free-threaded wheels sanitize arm64 verify mutants layout lock docs clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: ## run the demo, from nothing
	$(SETUP) run
	$(RUN)/wheeld demo $(ARGS)

test: ## run all tests, from nothing
	$(SETUP) test
	$(RUN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-fast: ## run the quick tests: the core, the client, a daemon under virtual time
	$(SETUP) fast
	$(RUN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" \
	    $(addprefix --ignore=tests/,broker clients demo integrations meta pipeline) $(ARGS)

bench: ## run the benchmarks
	$(SETUP) dev
	$(RUN)/python -m bench $(ARGS)

torture: ## kill and stop everything under load, then every publish step of the core
	$(SETUP) run
	@$(RUN)/python -m proofs.torture $(ARGS); first=$$?; $(RUN)/python -m proofs.sweep && exit $$first

sweep: ## kill and stop at instructions of the core, every one if given the time
	$(SETUP) run
	$(RUN)/python -m proofs.sweep $(ARGS)

check: ## lint, formatting, static analysis, types, house rules, compiler warnings
	$(SETUP) dev
	$(RUN)/ruff check $(CHECKED)
	$(RUN)/ruff format --check $(CHECKED)
	find core client tests -name '*.[ch]' -print0 | xargs -0 $(RUN)/clang-format --dry-run --Werror
	$(RUN)/clang-tidy --quiet core/wheeld_core/native/module.c -- -std=c11 -D_GNU_SOURCE -Icore/include \
	    -isystem $$($(RUN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))') $(DEEP)
	$(RUN)/mypy
	$(RUN)/hadolint examples/containers/Dockerfile examples/containers/web/Dockerfile
	$(RUN)/kubernetes-validate --strict --quiet examples/containers/kubernetes.yaml
	$(RUN)/python tools/house_rules.py
	WHEELD_WERROR=1 $(RUN)/python setup.py -q build_ext --force \
	    --build-temp build/check --build-lib build/check

free-threaded: ## the client's tests on a free-threaded PYTHON; TSAN=1: under ThreadSanitizer
	TSAN="$(TSAN)" tools/free_threaded.sh "$(or $(PYTHON),python3.14t)" $(ARGS)

c-client: ## build the C client into build/c-client; ARGS="install PREFIX=..." installs it
	$(MAKE) -C client/c $(if $(ARGS),$(ARGS),all)

wheels: ## build sdist and wheel for PYTHON, and test what they install
	$(SETUP) dev
	PYTHON="$(PYTHON)" tools/wheels.sh $(ARGS)

sanitize: ## run the core under the address, undefined and thread sanitizers
	$(SETUP) test
	$(RUN)/python -m proofs.sanitize $(ARGS)

arm64: ## run the core's C programs built for arm64, under emulation
	$(SETUP) run
	$(RUN)/python -m proofs.sanitize --arm64 $(ARGS)

verify: ## check the models of proofs/models/, and that each of their mutants fails
	$(SETUP) test
	$(RUN)/python -m proofs.verify $(ARGS)

mutants: ## break the core on purpose; a test catches each break
	$(SETUP) test
	$(RUN)/python -m proofs.mutants $(ARGS)

layout: ## write the tables of shm_layout.md again
	$(SETUP) run
	$(RUN)/python -m tools.layout_tables --write
	$(RUN)/python -m tools.option_tables --write

docs: ## build the documentation site into build/site; warnings are errors
	$(SETUP) dev
	$(RUN)/mkdocs build --quiet
	@echo "wheeld: build/site/index.html"

lock: ## write the versions of .venv into tools/locked.txt, which LOCKED=1 takes
	$(SETUP) dev
	@echo "# Made by \`make lock\`." >tools/locked.txt
	$(RUN)/python -m pip freeze --quiet --exclude-editable >>tools/locked.txt

clean: ## remove all that these commands made, .venv too
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f core/wheeld_core/*.so
	find wheeld core client pipeline testing tests tools bench proofs examples -name __pycache__ -prune -exec rm -rf {} +
