# make lab    set everything up and open JupyterLab on the map of the course
# make test   set everything up and run every test (but those that take long) and every notebook
# make help   the other commands

SHELL   := bash
# Versions of Python that torch has builds for: requires-python in pyproject.toml.
FITS    := import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
ifndef PYTHON
PYTHON  := $(shell for python in $(PYTHONS); do $$python -c '$(FITS)' 2>/dev/null && echo $$python && break; done)
endif
VENV    ?= .venv
RUN     := $(VENV)/bin/python
# Exactly the versions that were tested; empty: the newest that pyproject.toml allows.
LOCKED  ?= 1
LOCK    := requirements.lock
PIP      = $(RUN) -m pip install --disable-pip-version-check $(if $(LOCKED),--constraint $(LOCK))
# Without it each of the many processes that tests and notebooks start would compile the course's modules again.
unexport PYTHONDONTWRITEBYTECODE
# Where more processes compute than there are cores, threads of torch that wait for each other must not spin: a training
# step took ten times as long beside four other processes.
export OMP_WAIT_POLICY ?= PASSIVE
# Tests wait more than they compute, so there are more processes than cores.
JOBS    ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? 2 * cores : 8)))
NB      ?= $(sort $(wildcard notebooks/*.ipynb solutions/*.ipynb))
# A Markdown file, such as the page on which JupyterLab opens, is shown and not its text.
SHOW_MARKDOWN := {"@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}}}
# What JupyterLab's file browser leaves out: a learner works with the rest. (Its own list first.)
HIDDEN := __pycache__ *.pyc *.pyo .DS_Store *~ *.egg-info benchmarks build checks course lessons publish simgpu tests utils \
    wheels CITATION.cff CONTRIBUTING.md LICENSE Makefile conftest.py environment.yml pyproject.toml \
    requirements.lock start.py
HIDE_GLOBS = --ContentsManager.hide_globs="[$(foreach one,$(HIDDEN),'$(one)',)]"
LAB_SETTINGS   = $(VENV)/share/jupyter/lab/settings
LAB_ARGS ?= $(if $(filter 0,$(shell id -u)),--allow-root,)
# A cell that takes longer than this fails (seconds); it also bounds the wait for a kernel that died. One on ranks ends
# a minute earlier, so that it can tell who waits for whom.
CELL_TIMEOUT ?= 300
# Notebooks that need what `make frameworks` installs, as they say themselves (asked before the environment exists).
EXTRA  := $(shell $(PYTHON) -m course needs frameworks)
WHEELS  ?= wheels
# Set by CI: what failed and is in tests/may_fail_once.txt is tried once more, and listed.
AGAIN   ?=
# Which order `make random-order` takes.
SEED := $(or $(SEED),$(shell echo $$RANDOM))
# Set by `make durations`: how long each file takes is stored, so that the longest are begun first.
DURATIONS ?=
# Where the course is on GitHub, for the book's "open in", "edit" and "clone": https://github.com/OWNER/NAME
REPOSITORY ?=
PYTEST   = tests/once_more $(RUN) -m pytest -n $(JOBS) --dist loadfile $(if $(DURATIONS),--store-durations)
NBVAL    = $(PYTEST) -q --nbval --nbval-current-env --nbval-cell-timeout=$(CELL_TIMEOUT) \
    --nbval-sanitize-with tests/nbval_sanitize.cfg
# (Its own place for progress: what a learner has done must not change what a notebook shows here.)
lectures notebooks notebooks-spawn notebooks-frameworks: export COURSE_PROGRESS = $(abspath $(VENV))/progress-of-tests.json
lectures notebooks notebooks-spawn notebooks-frameworks extras tests-and-extras: export RANKS_TIMEOUT = $(shell expr $(CELL_TIMEOUT) - 60)

FRAMEWORKS := frameworks notebooks-frameworks tests-frameworks
# Ways to make this machine compute as another one does: other kernels of MKL, of torch, of oneDNN, or none of oneDNN.
# They are kernels of different operators, so CI changes them all at once.
PLAIN      := MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default COURSE_WITHOUT_ONEDNN=1
NUMERIC    := $(PLAIN) MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=SSE41

.PHONY: help setup lab update test test-frameworks test-numeric test-all test-gpu size lint tests lectures notebooks extras \
    notebooks-spawn tests-and-extras nightly tests-nightly random-order answers numeric frameworks \
    tests-frameworks answers-frameworks notebooks-frameworks execute labs grade new-lab durations lock benchmarks \
    book book-epub book-strings packages clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E $$'s/:.*## /\t/' | expand -t 24

setup: $(VENV)/.ready  ## make the environment and install everything into it (LOCKED= takes the newest versions)

# (A comma would end an argument of make's call, so this list of extras has a name.)
WITH_FRAMEWORKS := .[lab,frameworks,tune]
# $(call install,PACKAGES): with pip's progress bar on a terminal, else a line for each package.
define install
@echo "Installing $(1) into $(VENV): torch and its company are large, this takes minutes"
@set -o pipefail; if [ -t 1 ]; then $(PIP) $(1); else \
    $(PIP) --progress-bar off $(1) | { grep --line-buffered -E '^(Collecting|Building|Installing)' || true; }; fi
endef

$(VENV)/.ready: pyproject.toml $(if $(LOCKED),$(LOCK))
	@"$(PYTHON)" -c '$(FITS)' || { \
	    echo "This course needs Python 3.11 to 3.14 with its venv (torch has builds for no other)," \
	        "and $(or $(PYTHON),none of $(PYTHONS)) is that: install one, then type: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.13"; exit 1; }
	$(PYTHON) -m venv --upgrade-deps $(VENV)
	$(call install,--editable '.[lab]' --group test)
	@touch $@

lab: setup  ## set up and open JupyterLab on the map of the course and your progress
	@$(RUN) -m checks.start_page START.md
	@mkdir -p $(LAB_SETTINGS) && echo '$(SHOW_MARKDOWN)' > $(LAB_SETTINGS)/overrides.json
	$(VENV)/bin/jupyter lab --ServerApp.root_dir="$(CURDIR)" $(HIDE_GLOBS) $(LAB_ARGS) START.md

# (It needs no environment: what that needs is renewed by the next `make lab`.)
update:  ## take the course's newest version; what you have written stays
	@$(PYTHON) -m course.update

test: setup  ## set up and run every test and every lecture, but those that take long (CI runs all)
	@tests/stages lint tests lectures

test-frameworks: setup  ## set up and test the lectures and labs that need them
	@tests/stages $(FRAMEWORKS)

test-numeric: setup  ## run the numeric tests as processors of other kinds would compute them
	@tests/stages $(NUMERIC:%='numeric %')

test-all: setup  ## what CI runs
	@tests/stages lint tests-and-extras notebooks notebooks-spawn $(FRAMEWORKS)

test-gpu: setup  ## on a machine with GPUs: NCCL, notebooks, simulated against measured; stores a report
	$(RUN) benchmarks/gpu.py

lint: setup  ## ruff: format and lint; mypy: types of utils and simgpu
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

tests: setup  ## tests of utils, of the checks and of the repository's habits
	$(PYTEST) tests -m "not frameworks and not extras and not nightly"

# The longest: together they take four minutes of two cores.
LONG := gil_and_refcounting checkpointing torchrun failures_and_hangs choosing
# Without those.
lectures: setup  ## execute the lectures, and compare with what is stored
	$(NBVAL) $(filter-out $(EXTRA:%=notebooks/%) $(wildcard $(LONG:%=notebooks/??_%.ipynb)),$(wildcard notebooks/*.ipynb))

notebooks: setup  ## execute every lecture and solution, and compare with what is stored
	$(NBVAL) $(filter-out $(EXTRA:%=notebooks/%),$(wildcard notebooks/*.ipynb)) \
	    $(filter-out $(EXTRA:%=solutions/%),$(wildcard solutions/*.ipynb))

# As on macOS. (Each week all are run so: make notebooks RANKS_START=spawn)
SPAWNED := single_vs_multi_node
notebooks-spawn: export RANKS_START = spawn
notebooks-spawn: setup  ## execute lectures with ranks that are spawned, as on macOS, and not forked
	$(NBVAL) $(wildcard $(SPAWNED:%=notebooks/??_%.ipynb))

extras: $(VENV)/.book  ## what takes long: browser, web book, Slurm, torchrun, benchmarks, more known answers
	$(PYTEST) tests -m "extras and not frameworks and not nightly"

# At once, as what both need (worlds, jobs, pages) is made once, and one waits while the other computes.
tests-and-extras: $(VENV)/.book  ## both
	$(PYTEST) tests -m "not frameworks and not nightly"

numeric: setup  ## the numeric tests once: make numeric MKL_CBWR=COMPATIBLE
	$(PYTEST) -q $$(grep -rl --include='test_*.py' mark.numeric tests) -m "numeric and not frameworks and not nightly"

nightly: setup  ## what a workflow runs each night: what takes long, the tests in a random order, and as on other processors
	@tests/stages tests-nightly random-order 'numeric $(PLAIN)'

tests-nightly: $(VENV)/.traces $(VENV)/.book  ## benchmarks' programs, and what CI proves in another way
	$(PYTEST) tests -m "nightly and not frameworks"

# One process, so that what a test leaves behind meets all others.
random-order: JOBS = 0
random-order: setup  ## the tests in a random order, in one process: make random-order SEED=7
	@echo "make random-order SEED=$(SEED) repeats this order"
	$(PYTEST) tests -m "not frameworks and not extras and not nightly" --random-order --random-order-seed=$(SEED)

$(VENV)/.traces: $(VENV)/.ready
	$(RUN) -m venv --upgrade-deps $(VENV)/traces
	$(VENV)/traces/bin/python -m pip install --disable-pip-version-check --group traces
	@touch $@

answers: setup  ## judge all known answers of the labs (answers-frameworks: of those that need them): half an hour on two cores
	COURSE_ALL_ANSWERS=1 $(PYTEST) tests/checks/test_labs.py -m "not frameworks"

frameworks: $(VENV)/.frameworks  ## add MPI, Horovod, TensorFlow, JAX, DeepSpeed and Ray, for the lectures and labs that need them

# No pin of theirs clashes with the core's, so they share its environment; Horovod's wheel is kept outside it.
$(VENV)/.frameworks: $(VENV)/.ready scripts/frameworks/horovod_wheel.py
	$(call install,--editable '$(WITH_FRAMEWORKS)' --group test)
	$(RUN) scripts/frameworks/horovod_wheel.py $(WHEELS)
	@touch $@

tests-frameworks: frameworks  ## tests that need what `make frameworks` installs
	$(RUN) -m pip check
	$(PYTEST) tests -m "frameworks and not nightly"

answers-frameworks: frameworks  ## what a workflow runs each week: all tests and all known answers that need it
	COURSE_ALL_ANSWERS=1 $(PYTEST) tests -m frameworks

# TensorFlow and Ray start many processes each.
tests-frameworks answers-frameworks notebooks-frameworks: JOBS = 2
notebooks-frameworks: frameworks  ## execute the lectures and solutions that need it
	$(NBVAL) $(EXTRA:%=notebooks/%) $(EXTRA:%=solutions/%)

execute: setup  ## run notebooks and store their outputs: make execute NB=notebooks/00_start_here.ipynb
	$(RUN) -m course execute $(NB)

size:  ## how large each package is, beside what it may be
	@$(PYTHON) -m course.size

labs: setup  ## make labs/ from solutions/
	$(RUN) -m course labs

new-lab: setup  ## make a lab with one exercise and its check, for a lecture: make new-lab SLUG=torchrun
	@$(if $(SLUG),,echo "For which lecture? Type: make new-lab SLUG=slug_of_the_lecture" >&2; exit 2)
	@$(RUN) -m course lab $(SLUG)

# (ARGS=--help lists what can be chosen: time, memory, where the results go.)
grade: setup  ## grade learners' labs, each in a sandbox (README says what it keeps out): make grade DIR=folder
	@$(if $(DIR)$(ARGS),,echo "Which folder of learners' labs? Type: make grade DIR=folder" >&2; exit 2)
	@$(RUN) -m checks.grade $(ARGS) $(if $(DIR),"$(DIR)")

durations: setup  ## run everything and store how long each file takes, so that the longest are begun first
	@DURATIONS=1 tests/stages tests-and-extras notebooks notebooks-frameworks tests-frameworks

# (Each build of torch pins the CUDA packages that it needs itself.)
lock: GROUPS = test book benchmarks stored
lock: setup  ## take the newest versions that pyproject.toml allows into requirements.lock
	$(call install,--group lock)
	@set -o pipefail; { echo "# What was tested, made by \`make lock\`. \`make setup\` takes these versions, \`make setup LOCKED=\` the newest."; \
	    $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header pyproject.toml \
	    --all-extras $(GROUPS:%=--group %) | grep -v -E '^(cuda|nvidia-[^m]|triton)'; } > $(LOCK).new
	@mv $(LOCK).new $(LOCK)

book: $(VENV)/.book  ## build the web book from what is stored: build/book/html (SOLUTIONS=1 adds the solutions)
	BOOK_REPOSITORY="$(REPOSITORY)" $(RUN) publish/book.py html $(if $(SOLUTIONS),--solutions)

book-epub: $(VENV)/.book  ## the same as one EPUB: build/book/epub
	BOOK_REPOSITORY="$(REPOSITORY)" $(RUN) publish/book.py epub

book-strings: $(VENV)/.book  ## let the translations in publish/locale follow their texts
	$(RUN) publish/book.py strings

$(VENV)/.book: $(VENV)/.ready
	$(call install,--editable '.[lab]' --group test --group book)
	@touch $@

packages: setup  ## build what goes to PyPI, ranks and simgpu: build/packages/dist
	$(call install,--group packages)
	REPOSITORY="$(REPOSITORY)" $(RUN) publish/packages.py

benchmarks: setup  ## print this project's figures beside its peers'
	$(call install,--editable '.[lab]' --group benchmarks)
	$(RUN) benchmarks/launcher.py
	$(RUN) benchmarks/simgpu_overhead.py
	$(RUN) benchmarks/simgpu_ranks.py
	$(RUN) benchmarks/simgpu_vs_published.py
	$(RUN) benchmarks/operators.py
	$(RUN) benchmarks/simgpu_vs_hardware.py

clean:  ## remove all that make has made: the environment, what was built, caches (never what you wrote, nor your progress)
	rm -rf $(VENV) $(WHEELS) build screenshots START.md *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
