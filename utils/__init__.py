"""The small package behind the notebooks.

- ``ranks``: cells and functions on several processes; ``simulated``: what they take and say of simulated GPUs.
- ``draw``: pictures with one palette. ``hardware``: this machine, and links by their data sheets.
- ``training``: models, data and checkpoints that scripts and learners' cells import.

``%load_ext utils`` gives a notebook the magics ``%%ranks`` and ``%ranks``; ``utils.launch`` runs a function on ranks.
Nothing heavy is imported here: a notebook's first cell should not wait for what it may never use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utils.ranks import load_ipython_extension, provider, unload_ipython_extension

if TYPE_CHECKING:
    from utils.ranks import launch

provider.name = "utils.simulated"
__all__ = ["launch", "load_ipython_extension", "unload_ipython_extension"]


def __getattr__(name: str) -> Any:
    if name == "launch":
        from utils.ranks import launch

        return launch
    raise AttributeError(f"module 'utils' has no attribute {name!r}")
