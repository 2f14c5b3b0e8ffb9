# make demo    set up, train on the embedded digits, show the result (a few minutes on two cores)
# make test    set up, then ruff, mypy, the import contract, the documentation and all tests
# make quick   ruff and the fast tests (a minute on two cores)
# make format  fix what ruff can fix
# make tables  fill the tables of the pages from results/
# make docs    build the documentation into site/, strictly
# make browser install Chromium for the browser tests (Debian or Ubuntu, as root); without it they are skipped
#
# Longer tests (docs/reliability.md); COUNT and SEED change them:
# make torture kill commands at about 500 moments and compare with undisturbed ones
# make fuzz    damage 10,000 files of each kind and read them
# make load    mixmo serve under 500 clients and hostile requests
#
# make lock    resolve requirements.lock anew, keeping versions that still fit; remove the file first to upgrade all
# make audit   look the locked versions up in the published advisories, which needs the internet; fails if it misses one
# make sbom    write what is installed to sbom.json (CycloneDX)
PYTHON ?= python3
SEED ?= 0
BIN := .venv/bin
PAGES := README.md results/README.md docs/results/index.md docs/results/uncertainty.md docs/results/fine-tuning.md \
  docs/guides/reproduce.md
QUICK := mixing metrics calibration augment inference recipes models utils
TOOLS := uv==0.13.8 pip-audit==2.10.1 cyclonedx-bom==7.5.0
CUDA := cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13

.PHONY: setup demo test quick format lint tables docs browser torture fuzz load lock audit sbom clean

# The lock has the packages of Linux on x86-64; elsewhere pip chooses the versions.
ifeq ($(shell uname -sm),Linux x86_64)
define INSTALL
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
endef
else
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
endif

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL)
	touch $@

demo: setup
	$(BIN)/mixmo demo --out runs/demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mixmo reproduce --report --runs results --pages $(PAGES) --check

tables: setup
	$(BIN)/mixmo reproduce --report --runs results --pages $(PAGES)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: lint docs
	$(BIN)/pytest -n 2 --dist worksteal

browser:
	command -v chromedriver || { apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver; }

torture: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/torture.py --count $(or $(COUNT),500) --seed $(SEED)

fuzz: setup
	$(BIN)/python tests/faults/fuzz.py --count $(or $(COUNT),10000) --seed $(SEED)

load: setup
	PYTHONPATH=tests $(BIN)/python tests/faults/load.py --clients $(or $(COUNT),500) --seed $(SEED)

quick: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" $(addprefix tests/,$(QUICK))

# For Python 3.11 on Linux, with the hashes of all files of each version. Without torch, whose builds for CPUs and GPUs
# have other hashes: its version is in constraints.txt, and that of its CUDA packages in its own metadata.
lock: .venv/tools/ready
	printf '%s\n' $(CUDA) > .venv/tools/excludes
	printf 'hatchling\neditables\n' | .venv/tools/bin/uv pip compile --quiet pyproject.toml - --extra dev --generate-hashes \
	  --python-version 3.11.5 --python-platform x86_64-unknown-linux-gnu --constraint constraints.txt \
	  --excludes .venv/tools/excludes --no-emit-package torch --no-annotate --custom-compile-command 'make lock' \
	  --output-file requirements.lock

audit: .venv/tools/ready
	.venv/tools/bin/pip-audit --strict --disable-pip --requirement requirements.lock || { \
	  echo 'make audit: a package has a known vulnerability, or could not be audited; see above' >&2; exit 1; }

sbom: setup .venv/tools/ready
	.venv/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file sbom.json \
	  $(BIN)/python

.venv/tools/ready: .venv/ready
	$(BIN)/python -m venv .venv/tools
	.venv/tools/bin/python -m pip install --quiet $(TOOLS)
	touch $@

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache site runs/demo
