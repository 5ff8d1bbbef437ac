"""Cells and functions on several rank processes (contract 1 of the design).

magics.py      %%ranks and %ranks, a thin shell over …
options.py     reads what follows %%ranks, and checks the cell
views.py       where output goes: a notebook, a terminal, or nowhere
status.py      the table that %ranks shows
world.py       … a World: N rank processes, and what is sent to them; knows nothing of IPython
processes.py   the processes of a world: started and ended together
gather.py      waiting for the ranks: answers, time-outs, interrupts, deaths
starters.py    how rank processes come to life: forked from the zygote, or spawned
zygote.py      the process that imports torch once and forks ranks
guardian.py    the process that ends spawned ranks when the notebook is gone
signals.py     ends processes that may be gone already
rank.py        what runs inside a rank
inside.py      the rank's streams, figures and rich output
figures.py     a matplotlib backend for ranks
values.py      values on their way between the notebook and its ranks
locate.py      where a rank is: which line of the reader's code, which collective
groups.py      the rank's process group: made, cut loose, made again
transcript.py  what the ranks printed and showed, put in rank order
failures.py    exceptions and the table "which rank is in which call, waiting for whom"
wire.py        messages between the notebook and a rank: JSON with its length in front
launch.py      utils.launch: one function on fresh ranks
"""

from __future__ import annotations

from typing import Any

_HOME = {
    "launch": "launch",
    "World": "world",
    "RankError": "failures",
    "RankFailure": "failures",
    "RankTimeout": "failures",
    "RanksInterrupted": "failures",
}
__all__ = ["RankError", "RankFailure", "RankTimeout", "RanksInterrupted", "World", "launch"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the zygote and the ranks import this package and need almost nothing of it.
    if name in _HOME:
        from importlib import import_module

        value = getattr(import_module(f"utils.ranks.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'utils.ranks' has no attribute {name!r}")
