"""What is different in the process of a rank: no input, another scheduling, and what its own children do."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

_NO_INPUT = (
    "input() cannot be used on ranks: several processes would ask at once. "
    "Ask in an ordinary cell, then send the answer with `%ranks push NAME`."
)


def work_in_batches() -> None:
    """Let no rank push another off its core the moment a message arrives (Linux).

    With more ranks than cores, that is what makes gloo slow: an all-reduce of 4 kB on four ranks and two cores took
    4.9 ms under the usual policy and 0.9 ms under this one, which was made for work that nobody watches. The notebook
    itself stays as quick as it was: it may still push a rank aside.
    """
    if hasattr(os, "SCHED_BATCH"):
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            pass  # forbidden here; it is only slower


def draw_other_numbers() -> None:
    """Seed torch's generator, and numpy's global one, anew, as in a process of its own.

    What is forked goes on with its parent's state: without a seed, all ranks would draw the same numbers. (Python
    seeds its own generator after a fork.)
    """
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def refuse_input(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(_NO_INPUT)


def in_forked_child() -> None:
    # A data-loader worker, say: it prints to the rank's pipes and takes signals as any process does.
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.SIG_DFL)
