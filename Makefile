# Two commands matter: `make serve` and `make test`. Both set everything up first, in .venv.
SUITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c '$(SUITS)' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# An environment knows the folder it was made in: after a move it is made anew.
$(shell [ -s $(VENV)/.installed ] && [ "$$(cat $(VENV)/.installed)" != "$$(pwd)" ] && \
	rm -f $(BIN)/python $(VENV)/.installed $(VENV)/.installed-dev)

.PHONY: serve test lint types contracts unit install install-dev clean

serve: install ## serve the default model on http://127.0.0.1:8000 (ARGS='--port 9000' for other flags)
	@$(BIN)/aie serve $(ARGS)

test: lint types contracts unit ## everything that CI checks

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-dev
	$(BIN)/mypy

contracts: install-dev
	$(BIN)/lint-imports

# One thread for NumPy's products: on a busy machine several wait for each other, ten times as long as they compute.
unit: install-dev
	@$(BIN)/aie pull smollm2-135m || echo 'The default model could not be pulled: tests that need it will be skipped.'
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

# With uv and no Python that suits, uv fetches one. A half-made environment would be taken for a whole one: away with it.
$(BIN)/python:
	@if [ -n "$(PYTHON)" ]; then \
		"$(PYTHON)" -c '$(SUITS)' || { echo "aie needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is none of them. Name another: make PYTHON=/path/to/python" >&2; exit 3; }; \
	elif ! command -v uv >/dev/null 2>&1; then \
		echo "aie needs Python 3.11, 3.12 or 3.13; none was found. Install one, or name it: make PYTHON=/path/to/python" >&2; exit 3; fi
	@rm -rf $(VENV)
	@if command -v uv >/dev/null 2>&1; then uv venv -q --python "$(or $(PYTHON),>=3.11,<3.14)" $(VENV); \
	else "$(PYTHON)" -m venv $(VENV); fi \
	|| { rm -rf $(VENV); echo "No environment could be made in $(VENV). On Debian and Ubuntu, 'apt install python3-venv' helps." >&2; exit 3; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing aie into $(VENV) (once; about half a minute) …" >&2
	@$(call install,.)
	@pwd > $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing aie and its development tools into $(VENV) (once; about a minute) …" >&2
	@$(call install,.[dev])
	@pwd > $(VENV)/.installed; pwd > $@

# An environment that uv made has no pip; ensurepip brings it when uv is no longer there.
install = if command -v uv >/dev/null 2>&1; then uv pip install -q --python $(BIN)/python -c constraints.txt -e '$(1)'; else \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null 2>&1; \
	$(BIN)/python -m pip install -q -c constraints.txt -e '$(1)'; fi

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
