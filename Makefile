# Two commands matter: `make serve` and `make test`. Both set everything up first, in .venv.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test lint types contracts unit install install-dev clean

serve: install ## serve the default model on http://127.0.0.1:8000 (ARGS='--port 9000' for other flags)
	$(BIN)/aie serve $(ARGS)

test: install-dev lint types contracts unit ## everything that CI checks

lint:
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

contracts:
	$(BIN)/lint-imports

unit:
	@$(BIN)/aie pull smollm2-135m || echo 'The default model could not be pulled: tests that need it will be skipped.'
	$(BIN)/python -m pytest

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "aie needs Python 3.11, 3.12 or 3.13; none was found. Install one, or name it: make PYTHON=/path/to/python" >&2; exit 3; fi
	@if command -v uv >/dev/null 2>&1; then uv venv -q --python "$(PYTHON)" $(VENV); else "$(PYTHON)" -m venv $(VENV); fi

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@if command -v uv >/dev/null 2>&1; then uv pip install -q --python $(BIN)/python -c constraints.txt -e .; \
	else $(BIN)/python -m pip install -q -c constraints.txt -e .; fi
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@if command -v uv >/dev/null 2>&1; then uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[dev]'; \
	else $(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'; fi
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
