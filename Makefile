# make run, make demo and make test need Python 3.11 or later with its venv module, and nothing else prepared.
# PYTHON picks the interpreter for .venv; WORKSPACE is where models, datasets and runs go; ARGS go to app.py.

PYTHON ?=
WORKSPACE ?= workspace
ARGS ?=
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(VENV)/bin/pip
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
REFERENCE := .reference
# A --workspace in ARGS is meant for all of `make run`, not for the app alone.
spelled := $(filter --workspace=%,$(subst --workspace ,--workspace=,$(ARGS)))
override WORKSPACE := $(if $(spelled),$(patsubst --workspace=%,%,$(lastword $(spelled))),$(WORKSPACE))
PUBLISHED := chatterbox-tts==0.1.7
MYPY := $(PY) -m mypy
RUFF := $(PY) -m ruff check .

.PHONY: run demo check test test-all test-kills doctor reference help
.DEFAULT_GOAL := help

help:
	@echo "make run       the app, with the built-in model and the demo dataset in place"
	@echo "make demo      the whole main job without a browser; ends with $(WORKSPACE)/demo/report.json"
	@echo "make test      lint, types and every test but the slow ones"
	@echo "make test-all  the slow ones too"
	@echo "make test-kills  a training killed at fifty random moments, and the one that was not"
	@echo "make check     lint and types only"
	@echo "make doctor    what this machine has and lacks"
	@echo "make reference the published Chatterbox package in $(REFERENCE), to compare with; not needed to use the app"

run: $(INSTALLED)
	@test -d "$(WORKSPACE)/models/tiny" || $(PY) -m scripts.download --workspace "$(WORKSPACE)"
	@test -d "$(WORKSPACE)/datasets/amharic-demo" || $(PY) -m scripts.prepare --workspace "$(WORKSPACE)"
	$(PY) app.py --workspace "$(WORKSPACE)" $(ARGS)

demo: $(INSTALLED)
	$(PY) -m scripts.demo --workspace "$(WORKSPACE)"

doctor: $(INSTALLED)
	$(PY) -m scripts.doctor --workspace "$(WORKSPACE)"

check: $(INSTALLED_DEV)
	$(RUFF)
	$(MYPY)

# A thread and a process a core: two processes with two threads each slow one another down many times over. A test that
# measures how fast the page answers has the machine to itself.
test: check
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not slow and not browser" -n auto --maxprocesses 4 --dist loadfile
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "browser and not slow and not undisturbed" -n auto --maxprocesses 2 --dist loadfile
	$(PY) -m pytest -m "undisturbed and not slow"

test-all: test
	$(PY) -m pytest -m slow

test-kills: $(INSTALLED_DEV)
	$(PY) -m pytest tests/e2e/test_kill_and_resume.py -m slow

reference: $(REFERENCE)/.installed

$(INSTALLED): requirements.txt | $(PIP)
	$(PY) -m pip install --disable-pip-version-check -r requirements.txt
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	$(PY) -m pip install --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# The package pins an older torch, so it comes without its dependencies; those it needs are in the file.
$(REFERENCE)/.installed: requirements-reference.txt | $(REFERENCE)/bin/pip
	$(REFERENCE)/bin/python -m pip install --disable-pip-version-check -r requirements-reference.txt
	$(REFERENCE)/bin/python -m pip install --disable-pip-version-check --no-deps $(PUBLISHED)
	@touch $@

# `pip` is there last, so a creation that was cut off is done again.
$(PIP) $(REFERENCE)/bin/pip: %/bin/pip:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
		if $$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Creating $* with $$($$python --version)"; \
			exec $$python -m venv $*; \
		fi; \
	done; \
	echo "Python 3.11 or later with its venv module was not found." >&2; \
	echo "Install it (Debian, Ubuntu: apt install python3 python3-venv), or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	exit 1
