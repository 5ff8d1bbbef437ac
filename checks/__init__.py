"""Checks of the labs: a package for each lab, named by its slug, and the small vocabulary that they share.

the engine
  framework.py   exercises: what a lab's package defines and a notebook calls
  verdicts.py    ○ not started, ✗ wrong: sentence, ✓ right: figures
  sandbox.py     run: learners' functions in rank processes, under a time-out
  preloading.py  what these would import each for itself, imported once before they are forked
  inside.py      what runs in the rank, and turns every failure into a sentence
  printed.py     what an answer prints, shown beside the verdict
  standstill.py  ranks that wait for each other are ended at once; threads.py tells waiting from working
  answers.py     a learner's function on its way there; plain.py: values on their way back
  core/          an answer beside the official solution, its likely mistakes, and what a call does
  reference/     the official solutions, for these; `make labs` writes it
what is done
  points.py      what an exercise is worth, and what a wrong answer has earned of it
  memory.py      what this learner has done, kept between sessions
  overview.py    progress(): every lab, and what is done of it
  start_page.py  the page on which `make lab` opens
  grade/         a table of many learners' labs
the labs, in the order of the course
  01  single_vs_multi_node/             ranks and nodes, groups, the time of an all-reduce, broken launches
  02  model_parallelism/                stages, and pipelines of them
  03  data_parallel_internals/          data parallelism out of four steps
  04  gil_and_refcounting/              reference counts, loops that leak, processes instead of threads
  05  parameter_server_and_all_reduce/  all-reduces out of send and recv, and a parameter server
  06  ddp_and_bucketing/                DistributedDataParallel, one property after the other
  07  buckets_and_overlap/              buckets, and unused parameters that do not hold them up
  08  feeding_the_ranks/                samplers, epochs that repeat, loaders of different length, workers
  10  checkpointing/                    a save that survives a kill, exact resumes
  11  torchrun/                         a script for torchrun, a line typed on every node, broken programs
  12  failures_and_hangs/               reading logs, stacks and recorders of ranks that stand still
  13  memory_and_precision/             a step's bytes, activation checkpointing, a loss scaler, MFU and HFU
  14  sharded_data_parallel/            what FSDP does, one property after the other
  15  sharded_checkpoints/              shards cut anew, DCP in use, saves in the background
  16  tensor_parallelism/               the parts of a transformer, each cut over ranks
  17  pipeline_schedules/               orders of any pipeline, halves of a backward pass, tied tables, cuts
  18  context_parallelism/              blocks of keys, a ring that hides its messages, zig-zag, a cut sequence's loss
  19  expert_parallelism/               tokens that travel to experts, a balanced router, gradients, placing
  20  measuring/                        a timer, utilization, a late rank, exposed communication
  21  choosing/                         reasons as numbers, plans that run, a plan that does not fit, a run of months
  22  other_frameworks/                 the same training with MPI, Horovod, TensorFlow and JAX
  23  ray_and_tuning/                   random search and halving, by hand and with Ray Tune
  24  ray_train/                        a training that goes on after accidents
"""

from __future__ import annotations

from checks.framework import Exercise, exercise
from checks.overview import progress
from checks.plain import Opaque
from checks.points import passed
from checks.sandbox import run
from checks.verdicts import NotStarted, Verdict, Wrong

__all__ = [
    "Exercise",
    "NotStarted",
    "Opaque",
    "Verdict",
    "Wrong",
    "exercise",
    "passed",
    "progress",
    "run",
]
