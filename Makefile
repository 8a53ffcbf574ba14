# Two commands on a fresh machine with only Python (3.10 or newer) and make:
#   make demo    set up everything and do the whole job on text that is already here
#   make test    set up everything, then ruff, mypy and pytest
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test trackers style lint install clean
.DEFAULT_GOAL := demo

# The stamp makes set-up run once, and again when what it depends on changes. compileall uses all
# cores, pip would use one; it fails on what is written for newer Pythons, which nobody imports here.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/latemask demo

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
	$(BIN)/mypy

# mypy is one of the tests. One process more than cores: some tests wait for others they have killed.
test: style
	$(BIN)/pytest --numprocesses $$(( $$(nproc 2> /dev/null || echo 2) + 1 )) --dist worksteal

# The stores of wandb, mlflow and trackio: too heavy to be set up for every test, and mlflow wants an older pyarrow than
# constraints.txt has, so they have an environment of their own.
trackers:
	$(PYTHON) -m venv $(VENV)-trackers
	$(VENV)-trackers/bin/python -m pip install --quiet --no-compile $$(grep '^torch==' constraints.txt)
	$(VENV)-trackers/bin/python -m pip install --quiet --no-compile -e '.[dev,trackers]'
	$(VENV)-trackers/bin/pytest tests/training/test_trackers.py

clean:
	rm -rf $(VENV) $(VENV)-trackers .pytest_cache .mypy_cache .ruff_cache .hypothesis latemask-demo
