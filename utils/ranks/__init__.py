"""Cells and functions on several rank processes. Needs nothing else of ``utils``.

magics.py      %%ranks and %ranks, a thin shell over …
options.py     reads what follows %%ranks, and checks the cell
views.py       where output goes: a notebook, a terminal, or nowhere
status.py      the table that %ranks shows
launch.py      utils.launch: one function on fresh ranks
world.py       … a World: N rank processes, and what is sent to them; knows nothing of IPython
processes.py   the processes of a world: started and ended together
background.py  work that goes on while the prompt is free
gather.py      waiting for the ranks: answers, time-outs, interrupts, deaths
interrupts.py  Ctrl-C and the stop button while ranks work
transcript.py  what the ranks printed and showed, put in rank order
failures.py    how ranks ended and who waits for whom, in sentences and tables
errors.py      the exceptions
words.py       how ranks are named in sentences; tables of text
starters.py    how rank processes come to life: forked from the zygote, or spawned
zygote.py      the process that imports torch once and forks ranks
guardian.py    the process that ends spawned ranks when the notebook is gone
lifetimes.py   ending processes, and ending with the process that started us
wire.py        messages between the notebook and a rank: JSON with its length in front
rank.py        what runs inside a rank
surroundings.py what is different in the process of a rank
iopub.py       the rank's streams: what it prints, on its way to the notebook
display.py     the rank's values, figures and rich output
figures.py     a matplotlib backend for ranks
values.py      values on their way between the notebook and its ranks
completions.py names that live in a rank, while the reader types
locate.py      where a rank is: which line of the reader's code, which collective
flight.py      collectives that were begun and have not ended
tracebacks.py  tracebacks with the cell's lines, and without ours
groups.py      the rank's process group: made, and made again
devices.py     devices from elsewhere: where simulated GPUs join in
device.py      whether a rank can still use its GPU
connections.py the rank's connections to others, and how they are cut when a collective is stuck
clash.py       a module of the reader's own that has the name of this package
gpus.py        the GPUs that ranks can use
ports.py       ports of this machine that nobody uses
"""

from __future__ import annotations

from typing import Any

_HOME = {
    "launch": "launch",
    "preload": "launch",
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

        module = import_module(f"utils.ranks.{_HOME[name]}")
        globals().update({one: getattr(module, one) for one, home in _HOME.items() if home == _HOME[name]})
        return globals()[
            name
        ]  # (``launch`` too, when ``preload`` came first: else it would be the module of this name)
    raise AttributeError(f"module 'utils.ranks' has no attribute {name!r}")
