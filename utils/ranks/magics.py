"""The magics ``%%ranks`` (run a cell on ranks) and ``%ranks`` (status, pull, push, stop, restart).

A thin shell over :class:`utils.ranks.world.World`: it reads options, keeps the current world, and shows the results.
"""

from __future__ import annotations

import argparse
import atexit
import difflib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from utils.ranks import newer, starters
from utils.ranks.errors import BadRequest
from utils.ranks.failures import with_verb
from utils.ranks.options import OPTIONS, parse, parsed, rank_list, torch_modules
from utils.ranks.output import Held, Status, Values, default_view, said_alike, show
from utils.ranks.processes import check_gpus, check_shape
from utils.ranks.provider import Options, provider
from utils.ranks.world import DEFAULT_TIMEOUT, World, hidden_module

COMMANDS = ("status", "pull", "push", "wait", "log", "debug", *provider().commands, "stop", "restart")
DEFAULT_RANKS = 4
F = TypeVar("F", bound=Callable[..., Any])


class Shape(NamedTuple):
    """Of a world: how many ranks, on how many nodes, over which backend, with which devices from elsewhere."""

    size: int = DEFAULT_RANKS
    nodes: int = 1
    backend: str = "auto"
    devices: Options | None = None


def _provided(function: F) -> F:
    """Give the magic the provider's arguments, and lines of its help."""
    for flag, how in reversed([*provider().arguments.items()]):
        argument(flag, **how)(function)
    commands = [f"%ranks {command:<16} {line}" for command, line in provider().commands.items() if line]
    for place, lines in (("EXAMPLES", provider().examples), ("COMMANDS", commands)):
        indented = "".join(f"{line}\n        " for line in lines)
        function.__doc__ = str(function.__doc__).replace(f"{place}\n        ", indented)
    return function


@magics_class
class RanksMagics(Magics):
    """Holds the notebook's world, so that ranks and their variables live on from cell to cell."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.world: World | None = None
        self._wanted = Shape()
        self._background: tuple[World, Future[dict[int, str]], Held] | None = None
        atexit.register(self.close)

    @magic_arguments()
    @argument("-n", type=int, metavar="RANKS", help="Run on so many ranks; without it, on those that live already.")
    @argument("--nodes", type=int, help="Present the ranks as so many nodes (LOCAL_RANK, GROUP_RANK, … say so).")
    @argument("--only", metavar="RANKS", help="Run on these ranks alone, for example 0,2 or 1-3.")
    @argument("--backend", help="auto (the default), gloo or nccl.")
    @argument("--timeout", type=float, help=f"Seconds the cell may take (default {DEFAULT_TIMEOUT:g}; 0: no limit).")
    @_provided
    @argument("--bg", action="store_true", help="Run it in the background: the prompt is free, %%ranks wait waits.")
    @argument(
        "command",
        nargs="*",
        help="For %%ranks with one percent sign: status, pull NAME, push NAME, wait, log, debug N, stop, restart, "
        + "".join(f"{command}, " for command in [*provider().commands][:1])
        + "…",
    )
    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> Any:
        """Run a cell on several ranks (processes that work together).

        %%ranks -n 4            run this cell on four ranks; they live on, and so do their variables
        %%ranks                 the same ranks again
        %%ranks --only 0,2      on some of them
        %%ranks -n 4 --nodes 2  the same four ranks, presented as two nodes of two
        EXAMPLES
        %%ranks --bg            in the background: other cells can run meanwhile in the notebook

        In a rank these names exist: rank, world_size, local_rank, device, torch, dist, display. A cell may give them
        other values; the next cell has them anew (but for a device that you have chosen). input() and breakpoint()
        work: the prompt says which rank asks, and the time-out stands still.

        %ranks                  status: ranks, pids, backend, devices, memory
        %ranks pull NAME        NAME becomes a list here: its value on rank 0, on rank 1, …
        %ranks push NAME …      every rank gets this notebook's NAME (and others)
        %ranks wait             wait for the cell in the background; shows its output and value, raises its error
        %ranks log              of a cell in the background, what it has printed so far; else the last failure again
        %ranks debug N          Python's debugger, where rank N failed in the last cell
        COMMANDS
        %ranks stop             end the ranks
        %ranks restart          new ranks, without variables
        """
        try:
            options = parse(self.ranks, line)
            # The first line stays as a comment, so that line numbers are those of the notebook's cell.
            return self._line(options) if cell is None else self._cell(options, f"# %%ranks {line}\n{cell}")
        except BadRequest as error:
            raise UsageError(str(error)) from None

    # ------------------------------------------------------------------ %%ranks
    def _cell(self, options: argparse.Namespace, source: str) -> Any:
        if options.command:
            extra = " ".join(options.command)
            raise BadRequest(f"%%ranks takes options only, not {extra!r}; the code belongs on the lines below.")
        imports = torch_modules(source, parsed(source))
        if self._in_background():
            raise BadRequest("A cell still runs in the background: %ranks wait waits for it, %ranks stop ends it.")
        shape = self._shape(options)
        check_shape(*shape[:3])
        only = None if options.only is None else rank_list(options.only, shape.size)
        world = self._world_of(shape, imports)
        timeout = DEFAULT_TIMEOUT if options.timeout is None else options.timeout
        if timeout < 0:
            raise BadRequest("--timeout takes seconds: a positive number, or 0 for no limit.")
        # (IPython counts execution_count up before or after the cell runs, depending on its version.)
        file = f"<cell {len(self.shell.user_ns['In']) - 1} on ranks>"
        if options.bg:
            view = Held()
            self._background = world, world.submit_cell(source, file, only, timeout or None, view), view
            print("The cell runs in the background: %ranks wait waits for it, %ranks log shows what there is so far.")
            return None
        return _shown(world.run_cell(source, file, only, timeout or None, default_view(live=True)))

    def _in_background(self) -> bool:
        return self._background is not None and not self._background[1].done()

    def _shape(self, options: argparse.Namespace) -> Shape:
        size, nodes, backend, given = self._wanted
        before = given if options.n is None and options.nodes is None and options.backend is None else None
        given = provider().asked(options) or before
        if options.n is not None:
            # Another number of ranks begins afresh: the former shape's nodes may not even divide it.
            nodes = nodes if options.n == size else 1
            size = options.n
        nodes = nodes if options.nodes is None else options.nodes
        return Shape(size, nodes, options.backend or backend, given)

    def _world_of(self, shape: Shape, imports: Sequence[str] = ()) -> World:
        """The ranks that live already, or new ones, whose first cell imports these parts of torch."""
        former, note = self.world, ""
        if former is not None and former.open:
            if dead := former.dead_ranks():
                how = "; ".join(
                    f"{who} {with_verb(how, who.startswith('ranks'))}" for how, who in said_alike(dead.items())
                )
                note = f"Since the last cell {how}: here are new ranks, without the variables of the former."
            elif shape == self._wanted:
                return former
            else:
                note = f"New ranks ({_describe(shape)}) in place of the former ({_describe(self._wanted)}): "
                note += "variables begin anew."
        check_gpus(*shape[:3])  # what can be refused is refused while the former world is still there …
        self.close()  # … and its memory is free before the new one takes its own
        self.world = World(*shape[:3], devices=shape.devices, imports=imports)
        self._wanted = shape
        for line in (note, self.world.note):
            if line:
                print(line)
        return self.world

    # ------------------------------------------------------------------ %ranks
    def _line(self, options: argparse.Namespace) -> Any:
        command, *names = options.command or ["status"]
        if command not in COMMANDS:
            near = difflib.get_close_matches(command, COMMANDS, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise BadRequest(
                f"%ranks knows {', '.join(COMMANDS)}, not {command!r}.{hint} (A cell on ranks begins with %%ranks.)"
            )
        if any(vars(options)[name] not in (None, False) for name in vars(options).keys() - {"command"}):
            raise BadRequest("Options such as -n belong to a cell that begins with %%ranks (two percent signs).")
        if command in ("pull", "push"):
            if not names or (command == "pull" and len(names) > 1):
                raise BadRequest(f"%ranks {command} takes a name, for example: %ranks {command} loss")
            return getattr(self, f"_{command}")(*names)
        if command == "debug":
            if len(names) != 1 or not names[0].isdigit():
                raise BadRequest("%ranks debug takes the number of one rank, for example: %ranks debug 2")
            return self._living().debug(int(names[0]), default_view(live=True))
        if names:
            raise BadRequest(f"%ranks {command} takes nothing more; {' '.join(names)!r} is too much.")
        if command in provider().commands:
            return provider().show(command, self._living().devices_from, self._living().recorded)
        return getattr(self, f"_{command}")()

    def _status(self) -> Status:
        if self.world is None or not self.world.open:
            return Status("There are no ranks now. A cell that begins with %%ranks -n 4 starts four.", [])
        return self.world.status()

    def _pull(self, name: str) -> list[Any]:
        values = self._living().pull(name)
        if name.isidentifier():
            self.shell.user_ns[name] = values
        return values

    def _push(self, *names: str) -> None:
        for name in names:
            if name not in self.shell.user_ns:
                raise BadRequest(f"This notebook has no variable {name!r} to push.")
            self._living().push(name, self.shell.user_ns[name])

    def _wait(self) -> Values | None:
        if self._background is None:
            raise BadRequest("No cell runs in the background: begin one with %%ranks --bg.")
        world, future, view = self._background
        try:
            view.show_until(future)
        except KeyboardInterrupt:
            world.interrupt()
            view.show_until(future)
        self._background = None
        return _shown(future.result())

    def _log(self) -> None:
        if self._background is not None and self._in_background():
            show(self._background[2].outputs())
            return
        if self.world is None or self.world.last_failure is None:
            raise BadRequest("No cell of these ranks has failed so far.")
        lines, outputs = self.world.last_failure
        show(outputs)
        print("\n".join(lines))

    def _stop(self) -> None:
        self.close()

    def _restart(self) -> None:
        self.close()
        self._world_of(self._wanted)

    def _living(self) -> World:
        if self.world is None:
            raise BadRequest("There are no ranks now: run a cell that begins with %%ranks -n 4 first.")
        if not self.world.open:
            raise BadRequest("These ranks have ended: run a cell that begins with %%ranks, which starts new ones.")
        return self.world

    def close(self) -> None:
        """End the ranks."""
        if self.world is not None:
            self.world.close()
            self.world = None

    # ------------------------------------------------------------------ completion
    def complete(self, context: Any) -> dict[str, Any]:
        """IPython asks this for completions: options, commands, and the names that live in the ranks."""
        from IPython.core.completer import SimpleCompletion

        text = context.full_text
        first, _, rest = text.lstrip().partition("\n")
        word = re.split(r"[\s(){}\[\],=+*/:]", context.line_with_cursor[: context.cursor_position])[-1]
        found: list[str] = []
        if first.startswith(("%%ranks", "%ranks")) and context.cursor_line == 0:
            choices = OPTIONS if first.startswith("%%") else COMMANDS
            found = [choice for choice in choices if choice.startswith(word)]
        elif first.startswith("%%ranks") and rest and self.world is not None and word:
            found = self.world.complete(word)
        return {
            "completions": [SimpleCompletion(text=one, type="rank") for one in found],
            "matched_fragment": word,
            "suppress": False,
        }


def _shown(values: dict[int, str]) -> Values | None:
    return Values(values) if values else None


def _describe(shape: Shape) -> str:
    size, nodes, backend, given = shape
    text = f"{size} rank{'s' if size != 1 else ''}"
    if nodes > 1:
        text += f" on {nodes} nodes"
    if given is not None:
        return f"{text}, each with {provider().words(given)}"
    return text if backend == "auto" else f"{text}, {backend}"


_loaded: RanksMagics | None = None
_matcher: Any = None


def load(shell: Any) -> None:
    """Register the magics, and begin to import torch in the background."""
    from IPython.core import completer

    global _loaded, _matcher
    starters.warm_up()
    newer.add_names()
    if _loaded is None:
        loaded = _loaded = RanksMagics(shell)
        if hasattr(completer, "context_matcher"):  # (IPython before 8.6, as in Colab, completes nothing of ours)
            _matcher = completer.context_matcher()(lambda context: loaded.complete(context))
            shell.Completer.custom_matchers.append(_matcher)
    shell.register_magics(_loaded)
    if note := hidden_module():
        print(note)


def unload(shell: Any) -> None:
    """End the ranks and the process that forks them."""
    global _loaded, _matcher
    if _loaded is not None:
        _loaded.close()
        atexit.unregister(_loaded.close)
        if _matcher is not None:
            shell.Completer.custom_matchers.remove(_matcher)
        _loaded = _matcher = None
    starters.shut_down()
