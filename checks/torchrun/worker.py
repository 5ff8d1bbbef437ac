"""One process of this lab's script, watched: in a rank of the course, or in a worker that torchrun has started."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from checks.contracts import Facts, events
from checks.contracts.surroundings import changed, functions
from checks.contracts.watch import not_for_ever
from checks.torchrun.training_task import Task, single_process
from checks.verdicts import Wrong

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
COMPUTING = 10  # seconds of a core for main, which needs less than one on a usual machine
_kept: list[Any] = []  # stores and groups that live as long as their process
CHOSEN = (
    "must stay as torchrun has set it: the agents have chosen address, port and numbers, and others may be using "
    "any port that a program names"
)


class _Left(BaseException):
    """The program has ended its own process."""


def alone(folder: str, sizes: list[int], given: dict[str, Any]) -> Facts:
    """The script as it is given; "summed": what it would print if so many ranks added up their gradients."""
    task = Task(folder, 1, given)
    lines = _printed(task)
    facts = _facts(task, 0, _Notes(), lines)
    summed = {}
    for ranks in sizes:
        too_fast = Task(folder, 1, given)
        too_fast.lr = ranks * task.lr
        summed[f"{ranks}"] = _printed(too_fast)
    return facts | {"summed": summed}


def _printed(task: Task) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        single_process(task)
    return printed.getvalue().splitlines()


def on_rank(main: Any, folder: str, nodes: int, given: dict[str, Any]) -> Facts:
    """In a rank of the course: the process group is gone, the environment is that of a worker."""
    from utils.ranks import groups

    rank, world_size, port = dist.get_rank(), dist.get_world_size(), [0]
    if rank == 0:
        _kept.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        port = [_kept[0].port]
    dist.broadcast_object_list(port)
    dist.barrier()
    dist.destroy_process_group()
    groups.set_environment(rank, world_size, nodes, port[0])
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    notes = _Notes()
    task = Task(folder, world_size // nodes, given)
    events.begin()
    exits = os._exit, atexit._run_exitfuncs
    os._exit = _leave  # type: ignore[assignment]
    atexit._run_exitfuncs = lambda: None  # this process goes on
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            groups.torchs_own(),
            _watched_calls(notes, folder),
            events.listening() as heard,
            not_for_ever(COMPUTING),
        ):
            before = functions()
            try:
                main.function(task.given())
            except _Left as left:
                _judge_exit(left.args[0])
            except SystemExit as end:
                _judge_exit(end.code)
            except BaseException as error:
                raise main.outcome_of(error) from error
            finally:
                replaced = [("looks", f"{now} of {name}") for name, _, now in changed(before, functions())]
    finally:
        os._exit, atexit._run_exitfuncs = exits
    left = not dist.is_initialized()
    if not left:
        dist.destroy_process_group()
    used = [("course", module) for module in sorted(events.held_by(main.function)[1])]
    seen = [one for one in dict.fromkeys([*heard, *used, *replaced]) if one[0] in ("course", "looks")]
    return _facts(task, rank, notes, printed.getvalue().splitlines()) | {"left": left, "events": seen}


def worker() -> None:
    """In a worker of torchrun: run the answer that lies in the folder, and write down what it did."""
    from checks.answers import Answer
    from checks.inside import open_answer
    from utils.training.exit import leave

    folder = sys.argv[1]
    answer = Answer.from_json("main", json.loads(Path(folder, "answer.json").read_text(encoding="utf-8")))
    given = json.loads(Path(folder, "task.json").read_text(encoding="utf-8"))
    rank, notes = int(os.environ["RANK"]), _Notes()
    task = Task(folder, int(os.environ["LOCAL_WORLD_SIZE"]), given)
    exit_now = os._exit

    def write() -> None:
        facts = _facts(task, rank, notes, []) | {"left": not dist.is_initialized(), "events": []}
        Path(folder, f"facts.{rank}").write_text(json.dumps(facts))

    def exit_with_facts(code: int) -> None:
        write()
        exit_now(code)

    os._exit = exit_with_facts  # type: ignore[assignment]
    with _watched_calls(notes, folder):
        open_answer(answer.name, answer.payload, answer.sources).function(task.given())
    os._exit = exit_now
    write()
    leave()


class _Notes:
    """What a process does beside reading data."""

    def __init__(self) -> None:
        self.saved = 0
        self.groups = 0


@contextlib.contextmanager
def _watched_calls(notes: _Notes, folder: str) -> Iterator[None]:
    """Count files that are written into the folder, and process groups that are made, by whatever name."""
    before = {name: os.environ.get(name) for name in _NAMES}
    c10d = dist.distributed_c10d
    meet, make, save = c10d.rendezvous, c10d._new_process_group_helper, torch.save

    def unchanged() -> None:
        for name, value in before.items():
            if os.environ.get(name) != value:
                raise Wrong(f"{name} {CHOSEN}", measured=os.environ.get(name), expected=value)

    def rendezvous(url: str, *more: Any, **options: Any) -> Any:
        unchanged()
        if url != "env://":
            raise Wrong(f"init_method={url!r} names a place that your program has chosen; MASTER_PORT {CHOSEN}")
        return meet(url, *more, **options)

    def new_group(size: int, rank: int, members: Any, backend: Any, store: Any, *more: Any, **options: Any) -> Any:
        unchanged()
        if backend == "nccl":
            raise Wrong("nccl wants GPUs, and the tensors of this task are on the CPU: use gloo")
        if not members:  # the default group
            for name, variable, given in (("rank", "RANK", rank), ("world_size", "WORLD_SIZE", size)):
                if given != int(before[variable] or 0):
                    words = f"{name}= must be {variable} (leave it out, and torch reads it itself)"
                    raise Wrong(words, measured=given, expected=before[variable])
            place = store
            while isinstance(place, dist.PrefixStore):
                place = place.underlying_store
            if f"{getattr(place, 'port', '')}" != before["MASTER_PORT"]:
                words = "ranks meet in a store that your program has chosen, and not in that at MASTER_PORT, which"
                raise Wrong(f"{words} {CHOSEN}")
            notes.groups += 1
        made = make(size, rank, members, backend, store, *more, **options)
        # (A DistributedDataParallel that outlives its group would end it with the GIL, for which gloo's thread waits.)
        _kept.append(made)
        return made

    def watched_save(thing: Any, file: Any, *more: Any, **options: Any) -> None:
        notes.saved += not isinstance(file, io.BytesIO)
        save(thing, file, *more, **options)

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            path = os.fspath(arguments[0]) if not isinstance(arguments[0], int) else ""
            notes.saved += str(path).startswith(folder) and "facts." not in str(path)

    sys.addaudithook(see)
    c10d.rendezvous, c10d._new_process_group_helper = rendezvous, new_group
    torch.save = torch.serialization.save = watched_save
    try:
        yield
    finally:
        c10d.rendezvous, c10d._new_process_group_helper = meet, make
        torch.save = torch.serialization.save = save


def _leave(code: int) -> None:
    raise _Left(code)


def _judge_exit(code: Any) -> None:
    if code not in (None, 0):
        raise Wrong("main ends with an exit code that is not 0: torchrun takes that for a failure", measured=code)


def _facts(task: Task, rank: int, notes: _Notes, printed: list[str]) -> Facts:
    state: Any = None
    if rank == 0 and os.path.exists(task.path):
        with contextlib.suppress(Exception):
            state = torch.load(task.path, weights_only=True)
            state = dict(state) if isinstance(state, Mapping) else {"": state}
    weights = state and {f"{name}": _told(thing) for name, thing in state.items()}
    return task.noted | {"saved": notes.saved, "groups": notes.groups, "printed": printed, "weights": weights}


def _told(thing: Any) -> tuple[Any, list[float]]:
    """A tensor's shape and its numbers; of anything else its type."""
    if isinstance(thing, torch.Tensor):
        return list(thing.shape), thing.flatten().tolist()
    return type(thing).__name__, []
