"""Devices that ranks do not find on this machine: the place where simulated GPUs join in.

This package knows nothing of them but the name of a module, the provider, which ``utils`` passes on. In a rank it has

    take(options, rank, size, nodes) -> (device, backend)    before the process group is made; ValueError: refused
    begin(notes)                                             before a cell; notes: what each rank's ``end`` has returned
    end() -> note                                            after a cell; plain data

and in the notebook

    RECORDED                            the expression that gives what a rank has recorded of its last cell
    picture(kind, recorded) -> object   a picture of all ranks, "timeline" or "memory"
    words(options) -> str               what each rank has, for sentences: "a simulated H100"
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from utils.ranks.errors import BadRequest

Options = dict[str, Any]
name = ""
"""The module's name; "" if there is none."""


def asked(options: argparse.Namespace, before: Options | None) -> Options | None:
    """What follows %%ranks, as options for the provider; None: the devices of this machine."""
    if options.gpu is None:
        if options.network is not None or options.shapes:
            raise BadRequest("--network and --shapes belong to simulated GPUs: %%ranks -n 4 --gpu H100 --shapes")
        return before if options.n is None and options.nodes is None and options.backend is None else None
    if not name:
        raise BadRequest("--gpu gives each rank a simulated GPU, and this installation has none.")
    if options.backend is not None:
        raise BadRequest("--gpu brings its own backend: leave --backend out.")
    network = (options.network or "").strip("\"'")
    return {"module": name, "gpu": options.gpu.strip("\"'"), "network": network, "shapes": options.shapes}


def module(options: Options) -> Any:
    """The provider."""
    return importlib.import_module(options["module"])


def take(options: Options, rank: int, size: int, nodes: int) -> tuple[Any, str]:
    """In a rank: its device and its backend."""
    try:
        return module(options).take(options, rank, size, nodes)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def picture(options: Options | None, kind: str, pull: Any) -> Any:
    """A picture of the last cell on all ranks."""
    if options is None:
        raise BadRequest(f"%ranks {kind} shows simulated GPUs: run a cell that begins with %%ranks -n 4 --gpu H100.")
    found = module(options)
    try:
        return found.picture(kind, pull(found.RECORDED))
    except ValueError as error:
        raise BadRequest(str(error)) from None
