PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Neighbouring tests share what is made for them: each process gets one half of the list, and helps out at the end.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test check slow extras fuzz fuzz-guided torture faults soak lines claims bench bench-jax bench-learning bench-online docs docs-site clean

demo: $(VENV)/.installed ## Train TD3+BC on random Pendulum data, and compare it with the data
	$(BIN)/rl-training train --config td3_bc/pendulum

test: $(VENV)/.installed-dev ## All tests but those marked slow, in two processes: at most eight minutes on two idle cores
	@began=$$(date +%s); $(PYTEST) --durations 20; status=$$?; \
	seconds=$$(($$(date +%s) - began)); echo "$$((seconds / 60)) min $$((seconds % 60)) s"; exit $$status

test-%: $(VENV)/.installed-dev ## Tests of one district, such as `make test-data` or `make test-data/replay`
	$(PYTEST) tests/$*

check: $(VENV)/.installed-dev ## For daily work: format, lint, types, spelling, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(PYTEST) tests/test_architecture.py tests/core tests/envs tests/models tests/algorithms

slow: $(VENV)/.installed-dev ## Tests that take minutes: learning, kills
	$(PYTEST) -m slow

extras: $(VENV)/.installed-dev .venv-mlflow/.installed ## Tests that need programs beside Python: Node with packages from npm, Chromium, a server of MLflow
	command -v chromium || apt-get install --yes chromium
	$(BIN)/python -m pytest -m extras

fuzz: $(VENV)/.installed-dev ## Break files of every format for 15 minutes, and count what is not answered with an error of ours
	$(BIN)/python tests/fuzz/fuzzing.py --seconds $(or $(SECONDS),900) --seed $(or $(SEED),0)

fuzz-guided: $(VENV)/.installed-dev ## The same for readers of our own, guided by coverage; skipped where atheris cannot be installed
	-$(BIN)/python -m pip install --quiet atheris
	for reader in pt npz yaml; do $(BIN)/python tests/fuzz/guided.py $$reader -max_total_time=$(or $(SECONDS),300) -rss_limit_mb=3000 || exit 1; done

torture: $(VENV)/.installed-dev ## Kill runs at every file operation, resume them, and compare the results with uninterrupted runs; run it again to continue
	$(BIN)/python tests/endurance/torture.py --workers 2

faults: $(VENV)/.installed-dev ## Let every operation of a run on its files fail, as a full, broken or read-only disk does
	$(BIN)/python tests/endurance/faults.py

soak: $(VENV)/.installed-dev ## Train online for two hours with two workers, kill them every few minutes, and compare with a run left alone
	$(BIN)/python tests/endurance/soak.py --minutes $(or $(MINUTES),120)

lines: ## How much code there is, without blanks, comments and docstrings
	$(PYTHON) benchmarks/lines.py

claims: $(VENV)/.installed-dev ## Compare what estimate, select, pipeline and tune say with known truths, for two hours; run it again to continue
	$(BIN)/python benchmarks/claims.py $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY:%='%')) $(if $(ROUNDS),--rounds $(ROUNDS)) --workers $(or $(WORKERS),2)

bench: $(VENV)/.installed-dev ## Update speed of every algorithm, beside d3rlpy's where it has it
	$(BIN)/python benchmarks/update_speed.py --algos all

bench-jax: $(VENV)/.installed-dev .venv-jax/.installed ## Update speed of TD3+BC beside the same update in JAX
	$(BIN)/python benchmarks/jax_update.py --jax-python .venv-jax/bin/python

bench-online: $(VENV)/.installed-dev ## How fast online algorithms learn, and what fine-tuning does; run it again to continue
	$(BIN)/python benchmarks/online_learning.py

bench-learning: $(VENV)/.installed-dev ## What every algorithm learns on two datasets; run it again to continue
	$(BIN)/python benchmarks/learning.py

docs: $(VENV)/.installed-dev ## Write the generated tables into docs/
	$(BIN)/python docs/generate.py

docs-site: $(VENV)/.installed-dev ## Build the documentation as a site in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "read it with: $(BIN)/python -m http.server --directory site"

clean:
	rm -rf $(VENV) .venv-mlflow .venv-jax build dist site src/*.egg-info

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.installed

# The server has pins of its own; it is of the same version as the client.
.venv-mlflow/.installed: constraints.txt
	$(PYTHON) -m venv .venv-mlflow
	.venv-mlflow/bin/python -m pip install --quiet mlflow==$$(sed -n 's/^mlflow-skinny==//p' constraints.txt)
	touch $@

# JAX is compared with and never imported by the package. The pin of its version is among the others.
.venv-jax/.installed: constraints.txt
	$(PYTHON) -m venv .venv-jax
	.venv-jax/bin/python -m pip install --quiet -c constraints.txt jax
	touch $@
