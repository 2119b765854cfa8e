# Every target sets itself up: the first one makes .venv and installs Forebay with what its development needs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
READY := .venv/.ready
COMPILED ?= .venv/compiled
ENGINES := $(addprefix loadgen/sim/,call.py engine.py kv.py scheduler.py scheduler_sglang.py sequence.py)

# Tests start hundreds of processes: each reads what the first has compiled, whatever the environment says of bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup check fmt test bench demo sim experiments agree wheel docs nightly

help: ## Say what there is to make.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

setup: $(READY) ## Only set up .venv.

$(READY): pyproject.toml constraints.txt
	@command -v git >/dev/null || { echo "git is missing. On Debian: apt-get install -y git" >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing. On Debian: apt-get install -y python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing. On Debian: apt-get install -y $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

check: $(READY) ## Format, lint, types, import contracts; changes nothing.
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fmt: $(READY) ## Format, and repair what can be repaired.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(READY) ## All tests: side by side first, then alone those that measure time.
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not serial and not nightly and not engine"
	$(BIN)/python -m pytest -m "serial and not nightly and not engine"

nightly: $(READY) ## The tests at their full size; hours.
	@status=0; \
	NIGHTLY=1 $(BIN)/python -m pytest -m "nightly and not engine" || status=1; \
	NIGHTLY=1 $(BIN)/python -m pytest -m "not nightly and not engine" tests/faults tests/gateway/test_store.py || status=1; \
	exit $$status

bench: $(READY) ## What a decision, a body and an event cost.
	@for bench in tests/bench/*_bench.py; do echo "== $$bench"; $(BIN)/python $$bench; done

demo: $(READY) ## Four simulated engines, the gateway, a mixed load; beside round robin. ARGS="--seconds 30" for less.
	$(BIN)/forebay demo $(ARGS)

# Exit code 1 says that the core missed a target of the scenario: a result, not a failure of the target.
sim: $(READY) ## The core beside four baselines on mixed lengths, in virtual time. ARGS="--rate 8" for another load.
	$(BIN)/forebay sim mixed-lengths --router core,round_robin,least_requests,least_prefill,lmetric --rate 9 \
		--set duration=90s --seeds 2 --jobs 2 --quiet --no-html $(ARGS) || test $$? -eq 1

experiments: $(COMPILED)/.ready ## What the core claims, in the simulator; half an hour on two idle cores. ARGS="E1 E3 --seeds 3" for less.
	PYTHONPATH=$(abspath $(COMPILED)) $(BIN)/python -P -m loadgen.experiments $(ARGS)

# A copy of what is simulated, its engines compiled where that can be done: a quarter less time, the same results to the digit.
$(COMPILED)/.ready: $(READY) $(shell find policies loadgen -name __pycache__ -prune -o -print)
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED) && cp -r policies loadgen $(COMPILED)
	@mypyc=$$PWD/$(BIN)/mypyc; cd $(COMPILED) && { $$mypyc --ignore-missing-imports $(ENGINES) > compiled.log 2>&1 \
		|| echo "The simulated engines are not compiled, so they take longer: $(COMPILED)/compiled.log says why." >&2; }
	@touch $@

agree: $(READY) ## Do live and simulated runs agree? 20 minutes on an idle machine. ARGS="--scenario smoke --runs 1" for less.
	$(BIN)/python -m loadgen.agree $(ARGS)

# Built from a copy: what is compiled must never lie beside the sources, where it would hide changes to them.
wheel: $(READY) ## A compiled wheel in dist/: a third fewer instructions for a request (docs/adr/0013-compiled-policies.md).
	@command -v cc >/dev/null && $(BIN)/python -c 'import os, sysconfig; raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
		|| { echo "A C compiler or Python's headers are missing. On Debian: apt-get install -y gcc python3-dev" >&2; exit 1; }
	@copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && \
		git ls-files -z gateway policies loadgen pyproject.toml README.md LICENSE | xargs -0 cp --parents -t "$$copy" && \
		HATCH_BUILD_HOOK_ENABLE_MYPYC=true $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w "$${DIST:-dist}" "$$copy" && \
		ls "$${DIST:-dist}"/forebay-*.whl

docs: $(READY) ## Renew the pages that are made from the code.
	$(BIN)/python -m gateway.config.reference docs/configuration.md
	$(BIN)/python -m gateway.telemetry.families > docs/metrics.md.new && mv docs/metrics.md.new docs/metrics.md
