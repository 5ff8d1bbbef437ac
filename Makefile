# make lab    set everything up and open JupyterLab on the first lecture
# make test   set everything up and run every test and every notebook
# make help   the other commands

PYTHON ?= python3
VENV   ?= .venv
RUN    := $(VENV)/bin/python
JOBS   ?= 2
DIR    ?= labs
NB     ?= $(sort $(wildcard notebooks/*.ipynb solutions/*.ipynb))
LAB_ARGS ?= $(if $(filter 0,$(shell id -u)),--allow-root,)
# A cell that takes longer than this fails (seconds); it also bounds the wait for a kernel that died.
CELL_TIMEOUT ?= 120
# Notebooks that need what `make frameworks` installs, as they say themselves (asked before the environment exists).
EXTRA   = $(shell $(PYTHON) -m utils.course needs frameworks)
WHEELS ?= wheels
# Set by CI: what failed is tried once more, and listed.
AGAIN  ?=
PYTEST  = $(RUN) tests/again.py $(if $(AGAIN),--again)
DEALT   = -n $(JOBS) --dist loadfile
NBVAL   = -q $(DEALT) --nbval-current-env --nbval-cell-timeout=$(CELL_TIMEOUT) --nbval-sanitize-with tests/nbval_sanitize.cfg
# (Its own place for progress: what a learner has done must not change what a notebook shows here.)
notebooks test-frameworks: export COURSE_PROGRESS = $(abspath $(VENV))/progress-of-tests.json

.PHONY: help setup lab test lint tests notebooks frameworks test-frameworks execute labs grade benchmarks clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready  ## make the environment and install everything into it

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "This course needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --editable '.[test]'
	@touch $@

lab: setup  ## set up and open JupyterLab on the first lecture
	$(VENV)/bin/jupyter lab --ServerApp.root_dir="$(CURDIR)" $(LAB_ARGS) notebooks/00_start_here.ipynb

test: setup lint tests notebooks  ## set up and run every test and every notebook

lint: setup  ## ruff: format and lint
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .

tests: setup  ## tests of utils, of the checks and of the repository's habits
	$(PYTEST) tests -- $(DEALT) -m "not frameworks"

notebooks: setup  ## execute every notebook: strict for lectures and solutions, lax for labs
	$(PYTEST) $(filter-out $(EXTRA:%=notebooks/%),$(wildcard notebooks/*.ipynb)) \
	    $(filter-out $(EXTRA:%=solutions/%),$(wildcard solutions/*.ipynb)) -- --nbval $(NBVAL)
	$(PYTEST) $(filter-out $(EXTRA:%=labs/%),$(wildcard labs/*.ipynb)) -- --nbval-lax $(NBVAL)

frameworks: $(VENV)/.frameworks  ## add MPI, Horovod, TensorFlow and Ray, for the lectures and labs that need them

# No pin of theirs clashes with the core's, so they share its environment; Horovod's wheel is kept outside it.
$(VENV)/.frameworks: $(VENV)/.ready utils/launchers/frameworks/horovod_wheel.py
	$(RUN) -m pip install --quiet --editable '.[test,frameworks,tune]'
	$(RUN) -m utils.launchers.frameworks.horovod_wheel $(WHEELS)
	@touch $@

# TensorFlow and Ray take their time on a busy machine.
test-frameworks: CELL_TIMEOUT = 300
test-frameworks: frameworks  ## set up and test the lectures and labs that need them
	$(RUN) -m pip check
	$(PYTEST) tests -- $(DEALT) -m frameworks
	$(PYTEST) $(EXTRA:%=notebooks/%) $(EXTRA:%=solutions/%) -- --nbval $(NBVAL)
	$(PYTEST) $(EXTRA:%=labs/%) -- --nbval-lax $(NBVAL)

execute: setup  ## run notebooks and store their outputs: make execute NB=notebooks/00_start_here.ipynb
	$(RUN) -m utils.course execute $(NB)

labs: setup  ## make labs/ from solutions/
	$(RUN) -m utils.course labs

grade: setup  ## grade a folder of learners' labs: make grade DIR=folder
	@$(RUN) -m utils.checks.grading $(DIR)

benchmarks: setup  ## print this project's figures beside its peers'
	$(RUN) -m pip install --quiet --editable '.[test,benchmarks]'
	$(RUN) benchmarks/launcher.py
	$(RUN) benchmarks/all_reduce.py
	$(RUN) benchmarks/ddp.py
	$(RUN) benchmarks/simgpu.py
	$(RUN) benchmarks/simgpu_vs_hardware.py

clean:  ## remove the environment
	rm -rf $(VENV)
