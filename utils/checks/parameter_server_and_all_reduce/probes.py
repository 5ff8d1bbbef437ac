"""What the checks of this lab run inside ranks: an all-reduce written by hand, and a look at every message it sends.

For each case a probe calls the learner's function, gathers from all ranks what was seen, and lets the lab's judge look
at it. It stops at the first case that is not right: what comes after a wrong message is seldom worth a look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.algorithms.recorder import Record, record_collectives
from utils.checks.inside import _was_raised, refuse_modules
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    import torch

Facts = dict[str, Any]  # what one rank saw in one case
Judge = Callable[[Any, Any, list[Facts]], None]  # plan, case, what each rank saw

BASE = 1000  # a trace counts in this number system: one digit for each rank
FIRST = 11  # element i counts in units of FIRST + i, so that numbers of another place are noticed
LONGEST_TRACE = 40
COURSE_MODULES = ("utils.algorithms.all_reduce", "utils.algorithms.parameter_server")  # they hold the answers


@dataclass(frozen=True)
class Case:
    """One call: how many elements of which kind. "trace" is int64, and tells which ranks' numbers were added."""

    length: int
    kind: str

    def __str__(self) -> str:
        return f"{self.length:,} element{'s' if self.length != 1 else ''}, {self.dtype}"

    @property
    def dtype(self) -> str:
        return "int64" if self.kind == "trace" else self.kind

    def numbers(self, rank: int) -> torch.Tensor:
        """What a rank has before the all-reduce."""
        import torch

        place = torch.arange(self.length)
        if self.kind == "trace":
            assert self.length <= LONGEST_TRACE
            return (place + FIRST) * BASE**rank
        dtype = getattr(torch, self.kind)
        if dtype.is_floating_point:
            generator = torch.Generator().manual_seed(100 * self.length + rank)
            return torch.randn(self.length, generator=generator, dtype=dtype)
        # Odd and so large that the next smaller kind of float cannot hold it.
        large = 2**55 if dtype == torch.int64 else 2**25
        return ((rank + 1) * (large + 1) + 2 * place).to(dtype)

    def total(self, ranks: int) -> torch.Tensor:
        """What every rank has after it."""
        import torch

        return torch.stack([self.numbers(rank) for rank in range(ranks)]).sum(0).to(getattr(torch, self.dtype))

    def bytes_of(self, elements: float) -> float:
        return elements * self.numbers(0).element_size()


@dataclass(frozen=True)
class Plan:
    """What one launch does. Its repr is short, because sentences show it.

    Args:
        shape: nodes and ranks per node.
        cases: what is called one after the other.
        judge: looks at what all ranks saw in a case, and raises Wrong.
        arguments: what the learner's function gets behind the tensor.
        notes: a folder in which every rank keeps notes, for the case that its process ends or hangs.
    """

    shape: tuple[int, int]
    cases: tuple[Any, ...]
    notes: str
    judge: Judge
    arguments: tuple[Any, ...] = ()

    @property
    def ranks(self) -> int:
        return self.shape[0] * self.shape[1]

    def __repr__(self) -> str:
        if self.arguments:
            return f"{self.shape[0]} × {self.shape[1]} ranks"
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"


# --- watching --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def watch(tensor: torch.Tensor, note: Path) -> Iterator[Facts]:
    """Count the messages of this rank, and the bytes of all tensors but this one that are used in the ``with`` block.

    Yields:
        ``calls``: what was said, as ``Record.plain`` gives it; ``extra``: the most bytes that other tensors held at the
        same time. Every message is written to the file ``note`` before it is sent.
    """
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    own = tensor.untyped_storage()._cdata
    alive: dict[int, tuple[StorageWeakRef, int]] = {}
    facts: Facts = {"calls": [], "extra": 0}

    class Listener(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "c10d" and record.calls:
                call = record.calls[-1]  # the recorder has just heard it
                with note.open("a", encoding="utf-8") as file:
                    file.write(f"{call.name} {call.peer} {call.bytes}\n")
            result = func(*args, **(kwargs or {}))
            for key in [key for key, (storage, _) in alive.items() if storage.expired()]:
                del alive[key]
            for used in tree_leaves((args, kwargs, result)):
                if isinstance(used, torch.Tensor) and (storage := used.untyped_storage())._cdata != own:
                    alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            facts["extra"] = max(facts["extra"], sum(nbytes for _, nbytes in alive.values()))
            return result

    with Listener(), record_collectives() as record:  # the recorder is inside: it hears a call first
        yield facts
    facts["calls"] = record.plain()


def _gathered(facts: Facts) -> list[Facts]:
    import torch.distributed as dist

    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, facts)
    return everyone


# --- all-reduces -----------------------------------------------------------------------------------------------


def all_reduces(answer: Any, plan: Plan) -> list[list[Facts]] | None:
    """Call ``answer(tensor, *plan.arguments)`` for every case, until one is not right.

    Returns:
        On rank 0, for each case that was run, what every rank saw: ``calls``, ``extra``, and ``after``, the tensor.
    """
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for case in plan.cases:
        tensor = case.numbers(rank)
        _begin(plan, rank, str(case))
        with watch(tensor, Path(plan.notes) / f"calls.{rank}") as facts:
            answer(tensor, *plan.arguments)
        refuse_modules(*COURSE_MODULES)
        found.append(_gathered({**facts, "after": tensor}))
        if _is_wrong(plan, case, found[-1]):
            break
    return found if rank == 0 else None


def _begin(plan: Plan, rank: int, what: str) -> None:
    (Path(plan.notes) / f"case.{rank}").write_text(what, encoding="utf-8")
    (Path(plan.notes) / f"calls.{rank}").write_text("", encoding="utf-8")


def _is_wrong(plan: Plan, case: Any, facts: list[Facts]) -> bool:
    try:
        plan.judge(plan, case, facts)
    except Wrong:
        return True
    return False


# --- lengths ---------------------------------------------------------------------------------------------------


def lengths(answer: Any, plan: Plan) -> list[list[Facts]] | None:
    """Call ``answer(tensor)`` where rank r has ``case[r]`` elements, for every case until one is not right.

    Returns:
        On rank 0, for each case what every rank saw: ``calls``, and ``raised``: the exception's type and text, or None.
    """
    import torch
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for case in plan.cases:
        tensor, raised = torch.ones(case[rank]), None
        _begin(plan, rank, f"lengths {list(case)}")
        with watch(tensor, Path(plan.notes) / f"calls.{rank}") as facts:
            try:
                answer(tensor)
            except BaseException as error:
                why = error.__cause__  # what the answer itself has raised, if it was by ``raise`` or ``assert``
                if isinstance(why, NotImplementedError) or not _was_raised(why, within=answer.files):
                    raise
                raised = [type(why).__name__, str(why)]
                (Path(plan.notes) / f"raised.{rank}").write_text(raised[0], encoding="utf-8")
        refuse_modules(*COURSE_MODULES)
        found.append(_gathered({**facts, "raised": raised}))
        if _is_wrong(plan, case, found[-1]):
            break
        (Path(plan.notes) / f"raised.{rank}").unlink(missing_ok=True)
    return found if rank == 0 else None


# --- after a launch that did not come to its end -----------------------------------------------------------------


def noted(plan: Plan, what: str) -> dict[int, str]:
    """What the ranks have noted under a name ("case", "calls", "raised"), by rank."""
    paths = {rank: Path(plan.notes) / f"{what}.{rank}" for rank in range(plan.ranks)}
    return {rank: path.read_text(encoding="utf-8") for rank, path in paths.items() if path.exists()}


def misfit(calls: dict[int, list[tuple[str, int | None, int]]]) -> str:
    """The first message that does not fit where it is received, as a clause for a sentence; "" if there is none.

    Args:
        calls: for each rank its messages in order: "send" or "recv", the other rank, bytes.
    """
    sent: dict[tuple[int, int], list[int]] = {}
    received: dict[tuple[int, int], list[int]] = {}
    for rank, messages in calls.items():
        for name, peer, nbytes in messages:
            if name == "send" and peer is not None:
                sent.setdefault((rank, peer), []).append(nbytes)
            elif name == "recv" and peer is not None:
                received.setdefault((peer, rank), []).append(nbytes)
    for (source, target), sizes in sorted(sent.items()):
        for size, room in zip(sizes, received.get((source, target), []), strict=False):
            if size != room:
                return f"rank {source} sends {size:,} bytes, and rank {target} has room for {room:,}"
    return ""


def messages_in(text: str) -> list[tuple[str, int | None, int]]:
    """The messages of a note."""
    rows = [line.split() for line in text.splitlines()]
    return [(name, None if peer == "None" else int(peer), int(nbytes)) for name, peer, nbytes in rows]


def messages_of(facts: Facts) -> list[tuple[str, int | None, int]]:
    """The messages that a rank saw, in the same form."""
    return [(call.name, call.peer, call.bytes) for call in Record.from_plain(facts["calls"]).calls]
