"""Check of ``main``: on ranks of the course, which are told what workers of torchrun are told, beside the reference."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, refuse
from checks.engine.plain import in_steps
from checks.labs.torchrun.training_task import Task
from utils.ranks import groups

LOCAL, SHARE, AVERAGE = (
    "int(os.environ['LOCAL_RANK'])",
    "batch[rank::world_size]",
    "dist.all_reduce(tensor, dist.ReduceOp.AVG)",
)
SAVE = "    if rank == 0:\n        torch.save(model.state_dict(), task.path)\n"
PRINT, BOTH = "            if rank == 0:\n", "(mean_loss, *(parameter.grad for parameter in model.parameters()))"
OFFICIAL = Reference("torchrun", "main", {
    "every rank reads all samples, so all do the same work: give each a share of the batch": {SHARE: "batch"},
    "ranks on different nodes read the same samples: the local rank is counted on each node":
        {SHARE: f"batch[{LOCAL}::world_size]"},
    "the batch of all ranks together has grown: learning rate and number of steps were chosen for the one given":
        {"order.split(task.batch)": "order.split(task.batch * world_size)"},
    "each rank takes the GPU with its local rank, not always GPU 0":
        {'task.gpu(int(os.environ["LOCAL_RANK"]))': "task.gpu(0)"},
    "gradients are added up over the ranks, not averaged": {AVERAGE: "dist.all_reduce(tensor)\n"
        "                tensor /= world_size if tensor is mean_loss else 1"},
    "the gradients are never averaged over the ranks": {BOTH: "(mean_loss,)"},
    "the loss that is printed is that of rank 0's share, not the mean of all ranks":
        {"loss.detach()": "loss.detach().clone()", BOTH: "[parameter.grad for parameter in model.parameters()]"},
    "each rank starts with weights of its own: all begin with those of seed 0":
        {"torch.manual_seed(0)": "torch.manual_seed(rank)"},
    "every rank prints: only rank 0 does": {PRINT: "            if True:\n"},
    "every rank saves: only rank 0 does": {SAVE: SAVE.replace("rank == 0", "True")},
    "a rank on each node saves: each node has a local rank 0, and only rank 0 saves":
        {SAVE: SAVE.replace("rank == 0", f"{LOCAL} == 0")},
    "nobody saves the model": {SAVE: ""},
    "the names in the saved state have a prefix: save model.module of a DistributedDataParallel":
        {"model.state_dict()": "{f'module.{name}': one for name, one in model.state_dict().items()}"},
    "the process group is never left: end with dist.destroy_process_group()":
        {"    dist.destroy_process_group()": "    return"},
})  # fmt: skip
CASES = [{"nodes": "one"}, {"nodes": "several"}]
LINE = re.compile(r"epoch (\d+) step (\d+) loss (\d+\.\d{4}|nan)")
CHOSEN = "must stay as torchrun has set it: the agents have chosen address, port and numbers"
_stores: list[Any] = []  # they live as long as their process, and so do groups
_groups: list[Any] = []


def _call(main: Any, task: Task) -> None:
    """Without what else surrounds an answer's calls: its prints are for this check."""
    try:
        getattr(main, "function", main)(task)
    except _Left:
        pass
    except BaseException as error:
        raise (main.outcome_of(error) if hasattr(main, "outcome_of") else error) from error


class _Left(BaseException):
    """The program has ended its own process."""


def play(case: dict[str, Any], main: Callable[..., Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        return _play(case, main, folder)


def _play(case: dict[str, Any], main: Callable[..., Any], folder: str) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    nodes = 1 if case["nodes"] == "one" else 2 if ranks % 2 == 0 else ranks
    shared: list[Any] = [0, folder]
    if rank == 0:
        _stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        shared = [_stores[-1].port, folder]
    dist.broadcast_object_list(shared)
    port, folder = shared
    task, printed, saved = Task(folder, ranks // nodes), io.StringIO(), []
    with groups.torchs_own(), _own_group(rank, ranks, nodes, port) as made:
        with _noted(saved), contextlib.redirect_stdout(printed):
            _call(main, task)
        left = not dist.is_initialized()
    refuse(not made, "no process group is made: each process trains for itself")
    lines = printed.getvalue().splitlines()
    told: list[Any] = [None] * ranks
    dist.all_gather_object(told, in_steps(task.noted, task.batch // ranks))
    seen: dict[str, Any] = {
        "the GPUs that are taken": sorted({*task.taken}),
        "the number of samples that are read": sum(map(len, task.noted)),
        "the samples that all ranks read in each step": [
            sorted(sample for one in told for share in one[step : step + 1] for sample in share)
            for step in range(max(map(len, told)))
        ],
        "the lines that are printed": [line[:-6] if LINE.fullmatch(line) else line for line in lines],
        "the printed losses": torch.tensor([float(found[3]) for line in lines if (found := LINE.fullmatch(line))]),
        "how often a model is saved": len(saved),
        "whether the process group is left": left,
    }
    if rank == 0:
        state: Any = {"nothing that torch.load can read with weights_only=True": None}
        with contextlib.suppress(Exception):
            state = dict(torch.load(task.path, weights_only=True))
        seen |= {"the names in the saved state": [*state], "the saved weights": [*state.values()]}
    dist.barrier()
    return seen


@contextlib.contextmanager
def _own_group(rank: int, ranks: int, nodes: int, port: int) -> Iterator[list[Any]]:
    """In the block there is no group yet, and the environment is a worker's. It gives the groups that are made."""
    c10d, made = dist.distributed_c10d, []
    make, meet, before = c10d._new_process_group_helper, c10d.rendezvous, dict(os.environ)

    def new_group(*given: Any, **named: Any) -> Any:
        place = given[4]
        while isinstance(place, dist.PrefixStore):
            place = place.underlying_store
        words = f"ranks meet in a store that your program has chosen, and not in that at MASTER_PORT, which {CHOSEN}"
        refuse(not given[2] and getattr(place, "port", port) != port, words)
        made.append(make(*given, **named))
        _groups.append(made[-1])  # (who holds it longer would end it with the GIL, for which gloo's thread waits)
        return made[-1]

    def rendezvous(url: str, *more: Any, **named: Any) -> Any:
        refuse(url != "env://", f"init_method={url!r} names a place that your program has chosen; MASTER_PORT {CHOSEN}")
        name = next((one for one in told if os.environ.get(one) != told[one]), "")
        refuse(name, f"{name} {CHOSEN}", measured=os.environ.get(name), expected=told.get(name))
        words = "rank= or world_size= is not what torchrun says: leave them out, and torch reads RANK and WORLD_SIZE"
        refuse(any(mine not in (-1, right) for mine, right in zip(more, (rank, ranks), strict=False)), words)
        return meet(url, *more, **named)

    dist.barrier()
    dist.destroy_process_group()
    groups.set_environment(rank, ranks, nodes, port)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    told = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    c10d._new_process_group_helper, c10d.rendezvous = new_group, rendezvous
    try:
        yield made
    finally:
        c10d._new_process_group_helper, c10d.rendezvous = make, meet
        os.environ.clear()
        os.environ.update(before)
    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port) if rank else _stores[-1]
    dist.init_process_group("gloo", store=dist.PrefixStore("after", store), rank=rank, world_size=ranks)


@contextlib.contextmanager
def _noted(saved: list[Any]) -> Iterator[None]:
    """Which files torch.save writes; and who ends the process does not."""
    save, exits = torch.save, (os._exit, atexit._run_exitfuncs)

    def noted(thing: Any, file: Any, *more: Any, **named: Any) -> None:
        saved.extend([] if isinstance(file, io.BytesIO) else [file])
        save(thing, file, *more, **named)

    def leave(code: int) -> None:
        refuse(code, "main ends with an exit code that is not 0: torchrun takes that for a failure", measured=code)
        raise _Left

    torch.save, os._exit, atexit._run_exitfuncs = noted, leave, lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.save, (os._exit, atexit._run_exitfuncs) = save, exits
