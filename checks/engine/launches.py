"""What is noted of each collective and message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from checks.engine.plain import bits
from utils.ranks.collectives import METHODS

MESSAGES = ("send", "recv")
_OWN = ("work", "start", "pairs", "carries", "partner")  # what no check sees
_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


@dataclass(eq=False)
class Launch:
    """One communication, as this rank began it.

    Args:
        name: "all_reduce", …, "send", "recv", "new_group".
        bytes: that this rank hands in (for recv: that it gets).
        dtype: of the first tensor.
        peer: root, receiver or sender; None: there is none, or any.
        operation: of a reduction, "SUM".
        asynchronous: whether it was called with async_op=True.
        whole: whether all ranks of the world take part.
        members: the ranks that take part, of the world; empty for a message.
        ready: how many marks were there at the launch (see ``Watched.mark``).
        waited: how many at the first wait for it; None if nobody has waited.
        changed: whether a tensor was written to between launch and wait.
        tag: of a message.
    """

    name: str
    bytes: int
    dtype: str = ""
    peer: int | None = None
    operation: str = ""
    asynchronous: bool = False
    whole: bool = True
    members: list[int] = field(default_factory=list)
    ready: int = 0
    waited: int | None = None
    changed: bool = False
    tag: int = 0
    work: Any = None
    carries: Any = None
    partner: Any = None
    start: Callable[[], Any] | None = None
    pairs: list[tuple[Any, Any, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, method: str, group: Any, arguments: tuple[Any, ...]) -> Launch:
        """Of a call of a ``ProcessGroup``'s method."""
        name, goes_in, comes_out = METHODS[method]
        tensors = flat(arguments[goes_in] if goes_in is not None else arguments[0] if comes_out == 0 else ())
        tensors = tensors or flat(list(arguments))
        options = next((one for one in arguments if hasattr(one, "timeout")), None)
        number = next((one for one in arguments[1:] if isinstance(one, int)), None)
        root = getattr(options, "rootRank", None)
        first = tensors[0] if tensors else None
        if name in MESSAGES and number is not None:
            number = dist.get_global_rank(group, number)
        return cls(
            name,
            sum(one.nbytes for one in tensors) if name != "barrier" else 0,
            str(getattr(first, "dtype", "")).removeprefix("torch."),
            None if method == "recv_anysource" else root if root is not None else number,
            _operation(options),
            bool(getattr(options, "asyncOp", False)),
            name in MESSAGES or group.size() == dist.get_world_size(),
            [] if name in MESSAGES else list(dist.get_process_group_ranks(group)),
            tag=int(arguments[-1]) if name in MESSAGES and len(arguments) > 1 else 0,
        )

    def __str__(self) -> str:
        words = f"{'an' if self.name[0] == 'a' else 'a'} {self.name}"
        if self.operation not in ("", "SUM"):
            words += f" ({self.operation})"
        if self.name in ("broadcast", "reduce", "scatter", "gather"):
            words += f" from rank {self.peer}" if self.name in ("broadcast", "scatter") else f" to rank {self.peer}"
        if self.name in ("barrier", "scatter", "gather", "all_to_all"):
            return words  # (who does not scatter or gather hands in other bytes, and pieces for all may be uneven)
        return f"{words} of {self.bytes:,} bytes ({self.dtype})"

    def arrive(self) -> None:
        """Put the result into the learner's tensors, one of which may be a view of another: a share of what goes in."""
        for theirs, _, was in self.pairs:
            self.changed |= was is not None and not torch.equal(bits(theirs), bits(was))
        for theirs, mine, _ in self.pairs:
            if mine is not None:
                theirs.detach().copy_(mine)
        self.pairs = []

    def plain(self) -> dict[str, Any]:
        """As builtin types."""
        return {name: value for name, value in vars(self).items() if name not in _OWN}


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in flat(part)] if isinstance(value, list | tuple) else []


def swapped(value: Any, mine: dict[int, torch.Tensor]) -> Any:
    """Nested lists with other tensors in the places of these."""
    if isinstance(value, torch.Tensor):
        return mine[id(value)]
    return [swapped(part, mine) for part in value] if isinstance(value, list | tuple) else value


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in memory as the tensor does, gaps too: what gloo makes of it is what it would make of that."""
    if not _has_gaps(tensor) or 0 in tensor.stride():
        return tensor.detach().clone()
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor.detach())


def _has_gaps(tensor: torch.Tensor) -> bool:
    return not tensor.is_contiguous() and torch.empty_like(tensor).stride() != tensor.stride()


def _operation(options: Any) -> str:
    chosen = getattr(options, "reduceOp", None)
    return next((name for name in _OPERATIONS if chosen == getattr(dist.ReduceOp, name)), "") if chosen else ""
