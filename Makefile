# make demo    set up, train on the embedded digits, show the result (a few minutes on two cores)
# make test    set up, then ruff, mypy, the import contract, the documentation and all tests
# make quick   ruff and the fast tests (a minute on two cores)
# make docs    build the documentation into site/, strictly
# make load    mixmo serve under 500 clients and hostile requests (CLIENTS, HOSTILE and SEED change it)
# make browser install Chromium for the browser tests (Debian or Ubuntu, as root); without it they are skipped
PYTHON ?= python3
BIN := .venv/bin
CLIENTS ?= 500
HOSTILE ?= 300
SEED ?= 0
QUICK := mixing metrics calibration augment inference recipes models utils

.PHONY: setup demo test quick lint docs load browser format clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps torchvision==0.28.0
	touch $@

demo: setup
	$(BIN)/mixmo demo --out runs/demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: lint docs
	$(BIN)/pytest -n 2

load: setup
	PYTHONPATH=tests $(BIN)/python tests/faults/load.py --clients $(CLIENTS) --hostile $(HOSTILE) --seed $(SEED)

browser:
	command -v chromedriver || { apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver; }

quick: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n 2 -m "not slow" $(addprefix tests/,$(QUICK))

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache site runs/demo
