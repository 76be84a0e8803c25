# From a fresh clone to the result; each target does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test test-quick docs docs-check bench browser compilers lint audit

train: $(VENV)/runtime.stamp
	$(BIN)/python main.py --config=configs/digits.py --workdir=runs/digits

test: lint browser compilers
	$(BIN)/python -m pytest

# Less than four minutes on two cores: what needs neither long compilations nor several processes.
QUICK := config configs data launching/test_images.py launching/test_tpu_worker.py memory_bank sweeps \
	docs/test_documents.py test_storage.py \
	test_losses.py test_momentum.py test_package.py test_project.py test_registry.py \
	test_security.py test_spec_strings.py test_structure.py

test-quick: lint
	$(BIN)/python -m pytest $(addprefix tests/,$(QUICK))

# The site, into site/: open site/index.html. Anything wrong with it is an error.
docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict --quiet

# Links, file names, commands and examples of README and docs; a part of `test`.
docs-check: $(VENV)/dev.stamp $(VENV)/docs.stamp browser
	$(BIN)/python -m pytest tests/docs docs

# What a step and its input cost, in a few minutes; the tables of docs/performance.md take longer.
bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/train_step.py --model=resnet8 --width=16 --batch=64 --bank=1024 \
		--rounds=2 --no-start
	$(BIN)/python benchmarks/input_pipeline.py --rounds=1

# The report is looked at in a real browser. Debian's is installed where that can be done without
# asking; elsewhere, and not in CI, the test says that it is missing and is left out.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
		|| command -v google-chrome >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
			&& apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } \
		|| echo "no Chromium: the report is not looked at in a browser"

# The compilers of TPUs and GPUs, in folders of their own: beside the environment, not in it.
compilers: $(VENV)/runtime.stamp
	$(BIN)/python -m cone_jax.compilation.environment

lint: $(VENV)/dev.stamp $(VENV)/docs.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck scripts/*.sh
	$(BIN)/hadolint Dockerfile
	$(BIN)/python scripts/check_manifests.py scripts/*.yaml
	$(VENV)/docs/bin/codespell
	$(VENV)/docs/bin/proselint check --config docs/site/proselint.json \
		*.md docs/*.md docs/explanation/*.md docs/notebooks/*.md docs/results/*.md
	$(VENV)/docs/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/docs/bin/zizmor --offline --no-progress --quiet .github/workflows

# Looks the pins up in PyPI's database of vulnerabilities. Strict: where the database cannot be
# reached, or does not know a package, that is a failure, not "no known vulnerabilities".
audit: $(VENV)/audit.stamp
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip \
		--requirement requirements.txt --requirement requirements-buckets.txt

$(VENV)/docs.stamp: requirements-docs.txt
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip install --quiet --requirement requirements-docs.txt
	@touch $@

$(VENV)/audit.stamp: requirements-audit.txt
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --requirement requirements-audit.txt
	@touch $@

$(VENV)/runtime.stamp: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt requirements-buckets.txt $(VENV)/runtime.stamp
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	@touch $@
