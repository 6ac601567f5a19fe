# Everything that a fresh machine needs is made here: Python 3.11 or newer is all that must be there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

FOLDERS := hwmodels policies sim traces

.PHONY: demo test test-slow notebooks links lint check bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[fast,plot,report]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[test,lint]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/residency demo

test: $(VENV)/.installed-test links
	$(BIN)/python -m pytest -n 2 --benchmark-disable

test-slow: $(VENV)/.installed-test links
	$(BIN)/python -m pytest -n 2 --benchmark-disable -m slow
	$(BIN)/python -m pytest --benchmark-disable -m measured -rs --log-cli-level=INFO

notebooks: $(VENV)/.installed-test
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 notebooks

# mypy, import-linter and editors follow names through folders, so the packages get links at the place of their names.
links:
	@for folder in $(FOLDERS); do ln -sfn ../$$folder expert_residency/$$folder; done

lint: $(VENV)/.installed-test links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What CI checks first, in under 3 minutes; see CONTRIBUTING.md.
check: lint
	$(BIN)/python -m pytest tests/test_docstrings.py tests/test_pages.py tests/test_docs_build.py tests/test_golden.py

bench: $(VENV)/.installed-test
	$(BIN)/python -m pytest benchmarks -m benchmark_run

clean:
	rm -rf $(VENV) build dist *.egg-info $(FOLDERS:%=expert_residency/%) .mypy_cache .ruff_cache .pytest_cache .hypothesis
