# One place for every command a person or CI runs. `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup test lint fmt demo bench fuzz cluster-up cluster-down gen images-check clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the command line at .venv/bin/blurfleet

$(STAMP): constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

test: setup ## set up and run every test
	$(BIN)/python -m pytest

lint: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup ## the whole story on three real nodes; leaves out/demo/report.html and summary.json
	$(BIN)/blurfleet demo

bench: setup ## measure swaps, metrics, and the gateway beside other programs
	$(BIN)/blurfleet bench all

FUZZ_S ?= 60
fuzz: setup ## coverage-guided fuzzing of pictures, tensors and v2 bodies, FUZZ_S seconds each; findings in out/fuzz
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --require-hashes --target out/fuzz/atheris --requirement tests/fuzz/requirements.txt
	for target in picture tensor v2; do \
	  OPENCV_LOG_LEVEL=OFF PYTHONPATH=out/fuzz/atheris:. $(BIN)/python -m tests.fuzz.fuzz_bodies $$target \
	    -max_total_time=$(FUZZ_S) -verbosity=0 2>out/fuzz/$$target.log || { tail -n 40 out/fuzz/$$target.log; exit 1; }; done

cluster-up: setup ## a real Kubernetes API server on loopback with our kinds, roles and policies; out/cluster/kubeconfig
	$(BIN)/blurfleet cluster up

cluster-down: setup ## stop it and remove what it stored
	$(BIN)/blurfleet cluster down

gen: setup ## regenerate CRDs, deploy/ground.yaml, docs/api.md, dashboards and the images' locks
	$(BIN)/python -m blurfleet.api.crd --out charts/blurfleet/crds
	$(BIN)/python -m blurfleet.api.reference --out docs/api.md
	$(BIN)/python -m blurfleet_cli.cluster.ground
	$(BIN)/python dashboards/generate.py
	$(BIN)/python images/lock.py

images-check: setup ## dry-run what the images would install, for x86-64 and aarch64; asks the package index
	$(BIN)/python images/check.py

clean: ## remove what the targets made (the download cache stays)
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
