"""Names that torch 2.13 gave to functions of ``torch.distributed``: older versions get them too.

The course writes the newer name. Every rank calls ``add_names``, and so does ``%load_ext`` in a notebook. Under torch
2.13 and newer nothing changes.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

SINCE = (2, 13)
_FUNCTIONAL = "torch.distributed._functional_collectives"
_OLDER = {
    "torch.distributed": {
        "all_gather_single": "all_gather_into_tensor",
        "reduce_scatter_single": "reduce_scatter_tensor",
    },
    _FUNCTIONAL: {
        "all_gather_single": "all_gather_tensor",
        "all_gather_single_autograd": "all_gather_tensor_autograd",
        "reduce_scatter_single": "reduce_scatter_tensor",
        "reduce_scatter_single_autograd": "reduce_scatter_tensor_autograd",
    },
}


def older_than(*wanted: int) -> bool:
    """Whether the torch that is installed is older than this version, 2, 13 say. (torch itself is not imported.)"""
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) < wanted


def add_names() -> None:
    """Give an older torch the newer names; what has a name already keeps it."""
    if not older_than(*SINCE):
        return
    for module, names in _OLDER.items():
        there = import_module(module)
        for newer, older in names.items():
            if not hasattr(there, newer):
                setattr(there, newer, getattr(there, older))
