"""Cells and functions on several rank processes.

In the notebook
    magics.py      %%ranks and %ranks, a thin shell over …
    options.py     reads what follows %%ranks, and checks the cell
    world.py       … a World: N rank processes, and what is sent to them; launch: one function on fresh ranks
    processes.py   the processes of a world: started, interrupted and ended together
    gather.py      waiting for the ranks: answers, time-outs, interrupts, deaths
    output.py      what the ranks printed and showed: in rank order, on a page or in a terminal
    failures.py    how ranks ended and who waits for whom, in sentences and tables
    errors.py      the exceptions
Between them
    starters.py    how rank processes come to life: forked from the zygote, or spawned
    zygote.py      the process that imports torch once and forks ranks
    lifetimes.py   ending processes, and ending with the process that started us
    wire.py        messages between the notebook and a rank: JSON with its length in front
    values.py      values on their way between the notebook and its ranks
    provider.py    devices from elsewhere: where simulated GPUs join in
    ports.py       ports of this machine that nobody uses
In a rank
    rank.py        what runs inside a rank, and what is different in its process
    debugger.py    its questions to the reader: input(), breakpoint(), a look back at a failure
    iopub.py       its streams: what it prints, on its way to the notebook
    display.py     its values, figures, rich output and tracebacks
    locate.py      where it is: which line of the reader's code, which collective, what has not ended
    groups.py      its device and its process group: made, and made again
    newer.py       names of torch 2.13 for older versions
    collectives.py the one table of collectives: their names and tensors
    recorder.py    what a function says to other ranks: each collective, with its bytes
    connections.py its connections to others, and how they are cut when a collective is stuck
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_HOME = {
    "launch": "world",
    "preload": "world",
    "World": "world",
    "BadRequest": "errors",
    "RankError": "errors",
    "RankFailure": "errors",
    "RankTimeout": "errors",
    "RanksInterrupted": "errors",
}
__all__ = ["BadRequest", "RankError", "RankFailure", "RankTimeout", "RanksInterrupted", "World", "launch", "preload"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the zygote and the ranks import this package and need almost nothing of it.
    if name in _HOME:
        from importlib import import_module

        globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext`` calls. A cell such as ``!torchrun …`` finds the commands of this Python first."""
    from utils.ranks import magics

    own = str(Path(sys.executable).parent)
    if own not in (path := os.environ.get("PATH", "").split(os.pathsep)):
        os.environ["PATH"] = os.pathsep.join([own, *path])
    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext`` calls: the ranks end."""
    from utils.ranks import magics

    magics.unload(shell)
