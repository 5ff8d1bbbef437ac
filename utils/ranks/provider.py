"""Devices that ranks do not find on this machine: the place where simulated GPUs join in.

This package knows nothing of them but the name of a module, which is given from outside. That has a ``PROVIDER``, and
names another, which ranks import:

    take(options, rank, size, nodes) -> (device, backend)    before the process group is made; ValueError: refused
    begin(notes)                                             before a cell; notes: what each rank's ``end`` has returned
    end() -> note                                            after a cell; plain data
    recorded() -> object                                     what the rank has recorded of its last cell
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from argparse import Namespace

Options = dict[str, Any]
name = ""
"""The module's name; "" if there is none."""


class Provider:
    """What notebooks and ranks ask a provider; this one has nothing.

    It is made when the magics are loaded, so what it needs much time to import, it imports when it is asked.

    Attributes:
        arguments: what %%ranks takes for it, as argparse takes them.
        examples: lines for the help of %%ranks.
        commands: what %ranks does for it, each with a line for the help, or "".
    """

    arguments: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    examples: tuple[str, ...] = ()
    commands: ClassVar[Mapping[str, str]] = {}

    def asked(self, options: Namespace) -> Options | None:
        """What follows %%ranks, as options for a world; "module" is the one for ranks. None: nothing was asked for.

        Raises:
            BadRequest: it makes no sense.
        """
        return None

    def words(self, options: Options) -> str:
        """What each rank has, for sentences."""
        return ""

    def connected(self, options: Options, size: int, nodes: int) -> str:
        """What connects the devices of a world, for %ranks."""
        return ""

    def show(self, command: str, options: Options | None, recorded: Callable[[], list[Any]]) -> Any:
        """What a command shows. ``recorded`` asks each rank for its record; options: None for ranks without devices.

        Raises:
            BadRequest: there is nothing to show.
        """

    def refusal(self, backend: str | None, device: str, own: str) -> str:
        """In a rank: why no group can be made with this backend; "" if nothing is wrong.

        Args:
            device: the type of the rank's device.
            own: the backend of the rank's group.
        """
        return ""


@functools.cache
def provider() -> Provider:
    """The provider that ``name`` names, or one that has nothing."""
    found: Provider = import_module(name).PROVIDER if name else Provider()
    return found


def in_rank(options: Options) -> ModuleType:
    """The module for ranks.

    Raises:
        BadRequest: it does not work here; its own sentence says why.
    """
    from utils.ranks.errors import BadRequest  # (here, for everything that needs ``utils`` imports this module)

    try:
        return import_module(options["module"])
    except ImportError as error:
        raise BadRequest(str(error)) from None


def take(options: Options, rank: int, size: int, nodes: int) -> tuple[Any, str]:
    """In a rank: its device and its backend."""
    from utils.ranks.errors import BadRequest

    try:
        device, backend = in_rank(options).take(options, rank, size, nodes)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return device, backend
