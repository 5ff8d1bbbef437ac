"""The wire of this lab stands between a learner's collectives and gloo: it delivers as late as it may.

A real all-reduce may be over before its ``wait`` is called, or not. So a forgotten ``wait``, or a gradient that is
changed while it travels, gives right numbers now and then. On this wire

- an all-reduce or a broadcast really happens when somebody waits for it, and not before: until then the tensor keeps
  its old numbers. What was launched earlier happens first, as on every backend;
- a tensor that was changed between launch and wait is noticed;
- before a collective happens, the ranks tell each other which one it is. If they do not agree, all of them raise
  ``Wrong``: nobody hangs;
- every launch and every wait is noted with the phase (backward, say) and with the number of gradients that were ready.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from utils.algorithms.recorder import record_collectives
from utils.checks.inside import refuse_modules
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    import torch

END = "nothing more: its step is over"
COURSE_MODULES = ("utils.algorithms.ddp", "utils.algorithms.overlap")  # they hold the answers
_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


class Alone(Wrong):
    """What one rank finds by itself, while the others go on. (A plain Wrong here is raised by all ranks at once.)"""


@dataclass(eq=False)
class Call:
    """One all-reduce or broadcast of one rank.

    Args:
        name: "all_reduce" or "broadcast".
        bytes: size of the tensors that were handed in.
        dtype: their type, "float64".
        asynchronous: whether it was called with async_op=True.
        detail: of an all-reduce the operation, "SUM"; of a broadcast the rank that sends.
        phase: where the program was at the launch.
        ready: how many gradients had been accumulated by then.
        waited: the same two when it was first waited for; None if that never happened.
        changed: whether the tensor was changed between launch and wait.
    """

    name: str
    bytes: int
    dtype: str
    asynchronous: bool
    detail: str
    phase: str
    ready: int
    waited: tuple[str, int] | None = None
    changed: bool = False
    deliver: Callable[[], None] = field(default=int, repr=False)
    arrive: Callable[[], None] = field(default=int, repr=False)

    def __str__(self) -> str:
        kind = "an all_reduce" if self.detail == "SUM" else f"an all_reduce ({self.detail})"
        if self.name == "broadcast":
            kind = f"a broadcast from rank {self.detail}"
        return f"{kind} of {self.bytes:,} bytes ({self.dtype})"

    def plain(self) -> dict[str, Any]:
        """As builtin types."""
        return {key: value for key, value in vars(self).items() if key not in ("deliver", "arrive")}


class LateWork:
    """What a learner gets in place of a ``Work``."""

    def __init__(self, wire: Wire, call: Call) -> None:
        self._wire, self._call = wire, call

    def wait(self, timeout: Any = None) -> bool:
        self._wire.wait(self._call)
        return True

    def is_completed(self) -> bool:
        raise Alone(
            "call wait() on what all_reduce returns: in this check, nothing is completed before somebody waits."
        )

    def get_future(self) -> Any:
        raise Alone("keep what all_reduce returns and call its wait(): this check does not look into futures.")


class Wire:
    """All collectives of a rank, in order. Every rank of the world makes one at the same moment.

    Args:
        advice: how to make the ranks agree; ends the sentence that says they do not.
    """

    def __init__(self, advice: str) -> None:
        import torch.distributed as dist

        self.advice = advice
        self.phase = ""
        self.ready: list[str] = []  # gradients of this step, in the order in which they were accumulated
        self.calls: list[Call] = []
        self._delivered = 0
        self._side = dist.new_group()  # for the ranks' own words to each other
        self._strangers: Any = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """In the ``with`` block, this rank's collectives go over the wire."""
        from torch.distributed import ProcessGroup
        from torch.nn.parallel import DistributedDataParallel

        kept = [(ProcessGroup, "allreduce"), (ProcessGroup, "broadcast"), (DistributedDataParallel, "__init__")]
        originals = [getattr(place, name) for place, name in kept]
        ours = [self._launcher("all_reduce", originals[0]), self._launcher("broadcast", originals[1]), _no_library]
        for (place, name), function in zip(kept, ours, strict=True):
            setattr(place, name, function)
        try:
            with record_collectives() as self._strangers:  # hears what does not come over the wire
                yield
        finally:
            for (place, name), function in zip(kept, originals, strict=True):
                setattr(place, name, function)

    def _launcher(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(group: Any, tensors: Any, options: Any = None, *_: Any, **named: Any) -> Any:
            import torch
            from torch.utils._python_dispatch import _disable_current_modes

            tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            arguments = () if options is None else (options,)
            operation = _operation(options) if name == "all_reduce" else f"{getattr(options, 'rootRank', 0)}"
            if group is self._side:
                return original(group, tensors, *arguments, **named)
            if group.size() != self._side.size():
                raise Alone(f"a {name} of {group.size()} ranks only: all ranks have to take part.")
            before = [tensor.detach().clone() for tensor in tensors]
            result = [tensor.clone() for tensor in before]
            call = Call(
                name,
                sum(tensor.nbytes for tensor in before),
                str(before[0].dtype).removeprefix("torch."),
                bool(getattr(options, "asyncOp", False)),
                operation,
                self.phase,
                len(self.ready),
            )

            def deliver() -> None:
                with _disable_current_modes():
                    original(group, result, *arguments, **named).wait()

            call.deliver = deliver
            call.arrive = lambda: _arrive(call, tensors, before, result)
            self.calls.append(call)
            return LateWork(self, call)

        return launch

    def wait(self, call: Call) -> None:
        """Deliver everything up to this call, and put its result into its tensors (the first time)."""
        if call in self.calls:  # else: of an earlier step, delivered long ago
            while self._delivered <= self.calls.index(call):
                self._deliver_next()
        if call.waited is None:
            call.waited = self.phase, len(self.ready)
            call.arrive()

    def end_of_step(self) -> dict[str, Any]:
        """Make sure that all ranks have launched the same collectives; forget them.

        Returns:
            ``calls``: what this rank has launched; ``strangers``: the names of other collectives; ``ready``: which
            gradients were accumulated, in order.

        Raises:
            Wrong: on every rank, if they have not.
        """
        while self._delivered < len(self.calls):
            self._deliver_next()
        self._agree(END)
        facts = {
            "calls": [call.plain() for call in self.calls],
            "strangers": list(self._strangers.names),
            "ready": list(self.ready),
        }
        self.calls.clear()
        self.ready.clear()
        self._strangers.calls.clear()
        self._delivered = 0
        refuse_modules(*COURSE_MODULES, error=Alone)
        return facts

    def gather(self, facts: Any) -> list[Any]:
        """Everybody's facts, for everybody; not noted."""
        import torch.distributed as dist
        from torch.utils._python_dispatch import _disable_current_modes

        everyone: list[Any] = [None] * self._side.size()
        with _disable_current_modes():
            dist.all_gather_object(everyone, facts, group=self._side)
        return everyone

    def _deliver_next(self) -> None:
        call = self.calls[self._delivered]
        self._agree(str(call))
        call.deliver()
        self._delivered += 1

    def _agree(self, words: str) -> None:
        """Raise Wrong on all ranks unless all of them come here with the same words."""
        import torch
        import torch.distributed as dist
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            mine = torch.tensor([zlib.crc32(words.encode())])
            everyone = [torch.empty_like(mine) for _ in range(self._side.size())]
            dist.all_gather(everyone, mine, group=self._side)
            if all(torch.equal(mine, other) for other in everyone):
                return
        said = self.gather((words, [str(call) for call in self.calls]))
        raise Wrong(
            f"the ranks do not call the same collectives. Number {self._delivered + 1} of this step is "
            f"{_by_rank([words for words, _ in said])}: they would hang, or mix up tensors. {self.advice}.",
            details="\n".join(f"rank {rank}: {'; '.join(calls) or 'nothing'}" for rank, (_, calls) in enumerate(said)),
        )


def _no_library(*_: Any, **__: Any) -> None:
    raise Alone("the answer uses DistributedDataParallel: write it yourself, that is the point.")


def _arrive(call: Call, tensors: list[torch.Tensor], before: list[torch.Tensor], result: list[torch.Tensor]) -> None:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch.no_grad(), _disable_current_modes():
        for tensor, was, new in zip(tensors, before, result, strict=True):
            call.changed |= not torch.equal(tensor.nan_to_num(), was.nan_to_num())
            tensor.copy_(new)


def _operation(options: Any) -> str:
    import torch.distributed as dist

    chosen = getattr(options, "reduceOp", options)
    return next((name for name in _OPERATIONS if chosen == getattr(dist.ReduceOp, name)), "SUM")


def _by_rank(words: list[str]) -> str:
    """ "an all_reduce of 8 bytes on ranks 0, 2, and nothing more on rank 1"."""
    parts = []
    for what in dict.fromkeys(words):
        ranks = [str(rank) for rank, other in enumerate(words) if other == what]
        parts.append(f"{what} on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}")
    return ", and ".join(parts)
