"""This lab's broken programs on ranks: what the check gives each of them, and what it writes down."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from utils.algorithms.recorder import Record, record_collectives
from utils.checks.standstill import a_case
from utils.checks.verdicts import Wrong

Facts = dict[str, Any]
GOOD = 0.5


# --- a rank that leaves ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Losses:
    """For each rank, (sum of losses, number of samples) after each epoch. Its repr is short: sentences show it."""

    name: str
    per_rank: tuple[tuple[tuple[float, int], ...], ...]

    def __repr__(self) -> str:
        return self.name

    @property
    def most(self) -> int:
        return len(self.per_rank[0])

    def means(self, epoch: int) -> list[float]:
        """The mean loss of each rank; a rank without samples has none, so it counts as good."""
        return [rank[epoch][0] / rank[epoch][1] if rank[epoch][1] else 0.0 for rank in self.per_rank]

    def mean(self, epoch: int) -> float:
        return sum(rank[epoch][0] for rank in self.per_rank) / sum(rank[epoch][1] for rank in self.per_rank)


def until(cases: list[Losses], train: Any) -> list[Facts]:
    """``train_until(most, good, train_epoch, validate)`` on this rank, case after case."""
    import torch.distributed as dist

    found = []
    for case in cases:
        training = _Training(case, dist.get_rank())
        with a_case(repr(case)), record_collectives() as training.record:
            returned = train(case.most, GOOD, training.train_epoch, training.validate)
        found.append({"epochs": training.epochs, "returned": returned, "calls": training.record.plain()})
    return found


class _Training:
    """Stands for a training: an epoch is one all-reduce, as of gradients, and its losses are known before."""

    def __init__(self, case: Losses, rank: int) -> None:
        self.case, self.rank, self.epochs, self.record = case, rank, 0, Record()

    def train_epoch(self) -> None:
        import torch
        import torch.distributed as dist

        said = len(self.record.calls)
        dist.all_reduce(torch.ones(4))
        del self.record.calls[said:]  # what the answer says counts, not what the training says
        self.epochs += 1

    def validate(self) -> tuple[float, int]:
        if not 0 < self.epochs <= self.case.most:
            raise Wrong("validate() is for after an epoch", measured=f"{self.epochs} epochs trained")
        total, count = self.case.per_rank[self.rank][self.epochs - 1]
        return float(total), count


# --- all send --------------------------------------------------------------------------------------------------

SHAPES = (((5,), "float32"), ((70_000,), "float32"), ((2, 3), "float64"), ((4,), "int64"))


def shifts(shift: Any) -> list[Facts]:
    """``shift(tensor)`` on this rank, with tensors of several shapes; in the second case rank 0 comes late."""
    import torch
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    found = []
    for number, (shape, dtype) in enumerate(SHAPES):
        tensors = [torch.full(shape, 10 + sender, dtype=getattr(torch, dtype)) for sender in range(world_size)]
        mine = tensors[rank].clone()
        with a_case(f"a tensor of shape {list(shape)}"), record_collectives() as record:
            if number == 1 and rank == 0:
                time.sleep(1)
            got = shift(mine)
            got = got.clone() if isinstance(got, torch.Tensor) else got
        senders = [s for s, t in enumerate(tensors) if isinstance(got, torch.Tensor) and torch.equal(got, t)]
        dist.barrier()  # what was not waited for may still be under way
        found.append(
            {
                "kind": type(got).__name__,
                "same type": isinstance(got, torch.Tensor) and (got.shape, got.dtype) == (mine.shape, mine.dtype),
                "sender": senders[0] if senders else None,
                "changed": not torch.equal(mine, tensors[rank]),
                "bytes": mine.numel() * mine.element_size(),
                "calls": record.plain(),
            }
        )
    return found


# --- parts of different length ---------------------------------------------------------------------------------


def part(rank: int, length: int) -> list[int]:
    """What a rank has predicted: any whole numbers, also 0 and -1."""
    return [(-1, 0, 7 + rank, 100 * rank + index)[(rank + index) % 4] for index in range(length)]


def gathered(lengths: list[tuple[int, ...]], gather: Any) -> list[Facts]:
    """``gather_all(predictions)`` on this rank, case after case."""
    import torch
    import torch.distributed as dist

    found = []
    for case in lengths:
        mine = torch.tensor(part(dist.get_rank(), case[dist.get_rank()]), dtype=torch.int64)
        with a_case(f"lengths {', '.join(map(str, case))}"), record_collectives() as record:
            result = gather(mine)
        if isinstance(result, torch.Tensor):
            result = {"values": result.tolist(), "dtype": str(result.dtype)}
        found.append({"result": result, "calls": record.plain()})
    return found


# --- a swallowed exception -------------------------------------------------------------------------------------

FEATURES = 3
Step = tuple[float | None, ...]  # the gradient of each rank in one step; None: its batch is broken


def epoch(steps: list[Step], defect: int | None, train: Any) -> Facts:
    """``train_epoch(batches, gradient, features, update)`` on this rank.

    Args:
        steps: what the ranks' batches hold.
        defect: the step in which rank 1 has a mistake in its program, not in its data.
        train: the answer.
    """
    import torch
    import torch.distributed as dist

    me = dist.get_rank()
    updates: list[Any] = []
    asked: list[int] = []

    def gradient(batch: int) -> Any:
        asked.append(batch)
        if batch == defect and me == 1:
            raise KeyError("no such column")
        value = steps[batch][me]
        if value is None:
            raise ValueError(f"batch {batch} of rank {me} is broken")
        return torch.full((FEATURES,), value, dtype=torch.float32)

    def update(tensor: Any) -> None:
        whole = isinstance(tensor, torch.Tensor) and tensor.shape == (FEATURES,)
        updates.append(round(float(tensor[0]), 4) if whole else f"{type(tensor).__name__} of another shape")

    with record_collectives() as record:
        train(list(range(len(steps))), gradient, FEATURES, update)
    return {"updates": updates, "asked": asked, "calls": record.plain()}


# --- a port that is taken --------------------------------------------------------------------------------------


def stores(open_store: Any) -> Facts:
    """``open_store(host)`` twice on this rank, as two jobs on one node would; all ranks write and read in both."""
    import torch.distributed as dist

    me, world_size = dist.get_rank(), dist.get_world_size()
    opened: list[Facts] = []

    class Watched(dist.TCPStore):
        """Refuses ports before they are opened, so that no answer disturbs another program on this machine."""

        def __init__(
            self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False, **more: Any
        ) -> None:
            opened.append({"host": host_name, "serves": bool(is_master)})
            if is_master and me != 0:
                raise Wrong(
                    f"rank {me} opens a store too (is_master): each rank would have a store of its own. "
                    "Rank 0 serves, all others are its clients."
                )
            if is_master and port != 0 and more.get("master_listen_fd") is None:
                raise Wrong(
                    f"rank 0 opens port {port}, which your program has chosen: any other program may have it by then. "
                    "Give port 0: the system chooses a free one, and store.port tells which."
                )
            if not is_master and port == 0:
                raise Wrong("a client goes to port 0, where nobody is: rank 0 must tell the others its store.port.")
            super().__init__(host_name, port, world_size, is_master, **more)

    real, dist.TCPStore = dist.TCPStore, Watched
    try:
        made = []
        for job in ("first", "second"):
            with a_case(f"the {job} of two jobs on one node"):
                made.append(open_store("127.0.0.1"))
    finally:
        dist.TCPStore = real
    facts: Facts = {"kinds": [type(store).__name__.replace("Watched", "TCPStore") for store in made], "opened": opened}
    if facts["kinds"] != ["TCPStore"] * 2:
        return facts
    for number, store in enumerate(made):
        store.set(f"{number} {me}", str(me))
        store.get(f"{number} {me}")  # it answers, so the server has read what was set
    dist.barrier()
    facts["apart"] = [not store.check([f"{1 - number} {me}"]) for number, store in enumerate(made)]
    facts["together"] = [all(store.check([f"{n} {r}"]) for r in range(world_size)) for n, store in enumerate(made)]
    dist.barrier()
    return facts
