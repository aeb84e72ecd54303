# Each target works from a fresh clone. The first ones to try: make quickstart, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The pinned versions; make test CONSTRAINTS= installs the newest of everything.
CONSTRAINTS ?= constraints.txt
INSTALL := $(BIN)/pip install --quiet $(addprefix --constraint ,$(CONSTRAINTS)) --editable
export HF_HUB_OFFLINE ?= 1
# Tests start many processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test coverage lint types pages docs repository integrations portable portable-turn slow exhaustive dist tutorials size

quickstart: $(VENV)/offline.stamp
	$(BIN)/python examples/quickstart.py

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# The default and the slow tests, and the share of the package that they execute. It fails under the floor in
# pyproject.toml.
coverage: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m 'not network and not gpu' --numprocesses auto --dist worksteal --cov --cov-report=term

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp
	$(BIN)/mypy

# Tests of everything around the package: pictures, site, tutorials, workflows, benchmarks, what can be installed.
repository: $(VENV)/dev.stamp
	$(BIN)/python -m pytest tests/repository -m 'not network and not gpu' --numprocesses auto --dist worksteal

# Each tool of docs/integrations.md in a fresh environment, from the package index: some minutes for each.
integrations: $(VENV)/dev.stamp
	$(BIN)/python -m pytest tests/repository/test_integrations.py -m network -rP

# The pictures and the list of docs/parts, the README's picture, and docs/papers.
pages: $(VENV)/dev.stamp
	$(BIN)/python docs/parts/draw.py
	$(BIN)/python docs/parts/overview.py
	$(BIN)/python docs/papers/write.py

# The documentation site in build/site, to open from its files: a dead link or anchor is an error.
docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Sizes of package and tests next to their targets, and the files of four ways through the package.
size: $(VENV)/dev.stamp
	$(BIN)/python .ci/size.py
	$(BIN)/python .ci/walks.py

# Executes every tutorial in an empty folder and stores what it shows; each line has its seconds.
tutorials: $(VENV)/docs.stamp
	$(BIN)/python docs/tutorials/execute.py

# Tests that compare bits or digits (tests/bits.py finds them), with one factor varied at a time. The default tests
# use one thread and the processor's own instructions, so the last two settings need a processor with AVX-512.
BITS := -m pytest -m 'bits and not slow and not network and not gpu' --numprocesses auto --dist loadfile --no-loadscope-reorder
SETTINGS := OMP_NUM_THREADS=4 ATEN_CPU_CAPABILITY=default
ifneq ($(shell grep -m 1 avx512 /proc/cpuinfo 2> /dev/null),)
SETTINGS += ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
endif

portable: $(VENV)/dev.stamp $(addprefix portable-,$(SETTINGS))

# One of the settings, by the number of the part that this commit takes.
portable-turn: $(VENV)/dev.stamp
	part=$${CONTRASTIVE_TEXT_PART:-1/1} && set -- $(SETTINGS) && shift $$(( $${part%/*} % $$# )) && \
		env OMP_NUM_THREADS=1 $$1 $(BIN)/python $(BITS)

portable-%: $(VENV)/dev.stamp
	env OMP_NUM_THREADS=1 $* $(BIN)/python $(BITS)

slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m slow --numprocesses auto --dist worksteal

# All combinations and long checks, of which make slow takes a part.
exhaustive: $(VENV)/dev.stamp
	CONTRASTIVE_TEXT_PART=1/1 $(BIN)/python -m pytest -m slow --numprocesses auto --dist worksteal \
		tests/test_combinations.py tests/test_one_gradient.py tests/test_server.py tests/test_embed_ray.py \
		tests/recipes/test_papers.py tests/recipes/test_split_weights.py \
		tests/training/test_split_weights.py tests/inference/test_onnx_export.py

# The wheel and the archive of sources in dist/, by pinned tools that share no environment with the library.
dist:
	$(PYTHON) -m venv --clear build/tools
	build/tools/bin/pip install --quiet --constraint constraints.txt build hatchling twine
	rm -rf dist
	build/tools/bin/python -m build --no-isolation
	build/tools/bin/twine check --strict dist/*

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Quoted extras; --quiet still shows errors. A changed pyproject or constraints file installs again.
$(VENV)/offline.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes the first time."
	$(INSTALL) '.[offline]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes the first time."
	$(INSTALL) '.[dev,offline]'
	touch $@

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes the first time."
	$(INSTALL) '.[docs,offline]'
	touch $@
