# Every target works in a clean clone: the environment is made on first use from the hash-locked files.
BIN := .venv/bin
ENV := .venv/.complete
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --custom-compile-command "make lock" $(UPGRADE)
PYTEST := $(BIN)/python -m pytest -n 2

# Rewritten tests are kept: to make them anew takes each worker several seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: all bench check demo docs fix lock mutants recovery test

all: check test recovery mutants

demo: $(ENV)
	@$(BIN)/endstate demo

# What CI runs. Its last line is pytest's own summary.
test: $(ENV)
	@$(PYTEST) -m "not recovery"

# Under 30 seconds, for every commit.
check: $(ENV)
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/codespell
	@$(BIN)/shellcheck .ci/run scripts/setup-env entrypoint.sh
	@$(BIN)/zizmor --offline --quiet .github action.yml resume/action.yml
	@$(PYTEST) -q --hypothesis-profile=quick -m "not recovery and not slow" tests/unit tests/contract tests/test_architecture.py

recovery: $(ENV)
	@$(PYTEST) -m recovery

mutants: $(ENV)
	@$(BIN)/python -m tests.mutants.run

bench: $(ENV)
	@$(BIN)/python -m bench

docs: $(ENV)
	@$(BIN)/python docs/generate.py --write
	@$(BIN)/python -m tests.mutants.run --write

fix: $(ENV)
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

# Keeps what is locked unless a bound in pyproject.toml says otherwise; `make lock UPGRADE=--upgrade` moves all.
lock: $(ENV)
	@$(LOCK) --output-file requirements.lock
	@# What the extra takes beside them, for the action, which installs it where such a store is named.
	@$(LOCK) --extra objectstore --constraint requirements.lock --no-emit-package endstate-action \
		$(shell sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' requirements.lock) \
		--output-file requirements-objectstore.lock
	@$(LOCK) --group dev --constraint requirements.lock --output-file requirements-dev.lock

$(ENV): requirements-dev.lock
	@scripts/setup-env
