"""What a function says to other ranks: every collective in order, with its group, bytes and data type.

How it looks: all of torch's communication goes through operators named ``c10d::…`` (or
``_c10d_functional::…``), and a ``TorchDispatchMode`` sees every operator. Tried with torch 2.13.0 and four
gloo ranks, it sees

- all functions of torch.distributed, the object collectives too (as the all_gather or broadcast of tensors
  that they are: two each, the lengths and then the bytes), ``barrier`` and ``monitored_barrier``;
- ``send``, ``recv``, ``isend``, ``irecv`` and ``batch_isend_irecv``. The operator is the same for ``send``
  and ``isend``, so ``asynchronous`` is None for these;
- calls from C++: the broadcast and the all-reduce of every bucket of DistributedDataParallel, and what FSDP2
  does;
- methods of a process group (``group.allreduce([tensor])``) and functional collectives.

It does not see ``new_group`` (which talks through the store, not through an operator), nor anything that gloo
or NCCL do underneath: how many bytes a library's all-reduce moves is not known here, but an all-reduce that
is written by hand with send and recv can be counted to the byte (``sent_bytes``). The mode holds for one
thread; threads that are started while recording are recorded too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from utils.ranks.collectives import name_of

_NO_TRAFFIC = {"wait_tensor", "wrap_tensor_autograd", "check_for_nan"}
# Where the tensors that this rank hands in are found, most telling first. (A rank that does not scatter hands
# in nothing, so the piece that it receives is counted for all ranks.)
_TENSORS = ("tensors", "input_tensors", "input_tensor", "input", "inputs", "tensor")


@dataclass(frozen=True)
class Collective:
    """One communication as this rank took part in it.

    Args:
        name: all_reduce, broadcast, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all, send,
            recv, barrier or monitored_barrier.
        ranks: the global ranks of its group.
        bytes: size of the tensors that this rank handed in (for scatter: of the piece it got).
        dtype: their type, "float32"; "" where there is none.
        asynchronous: True for async_op=True, None for send and recv, where it cannot be seen.
        peer: the global rank of the root, of the receiver or of the sender; None where there is none (or
            any).
    """

    name: str
    ranks: tuple[int, ...]
    bytes: int
    dtype: str
    asynchronous: bool | None
    peer: int | None = None


@dataclass
class Record:
    """The collectives of one rank, in order."""

    calls: list[Collective] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def of(self, *names: str) -> list[Collective]:
        """The calls with one of these names."""
        return [call for call in self.calls if call.name in names]

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sent with send and isend."""
        return sum(call.bytes for call in self.of("send"))


@contextlib.contextmanager
def record_collectives() -> Iterator[Record]:
    """Inside a rank: log every collective that is started in the ``with`` block.

    >>> with record_collectives() as record:
    ...     answer(tensor)
    >>> record.names
    ['all_reduce']
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    record = Record()

    class Listener(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch imports its compiler at the first operator, which takes seconds

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace in ("c10d", "_c10d_functional"):
                call = _collective(func, args, kwargs or {})
                if call is not None:
                    record.calls.append(call)
            return func(*args, **(kwargs or {}))

    run_thread = threading.Thread.run

    def run_recorded(self: threading.Thread) -> None:
        with Listener():
            run_thread(self)

    threading.Thread.run = run_recorded  # type: ignore[method-assign]
    try:
        with Listener():
            yield record
    finally:
        threading.Thread.run = run_thread  # type: ignore[method-assign]


def _collective(func: Any, args: Any, kwargs: dict[str, Any]) -> Collective | None:
    short = func._schema.name.split("::")[1].strip("_")
    if short in _NO_TRAFFIC:
        return None
    # Arguments that have their default value are left out of ``args``; async_op's default is True.
    given = {argument.name: argument.default_value for argument in func._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    name = name_of(short)
    ranks = _ranks(given)
    tensors = next((given[key] for key in _TENSORS if given.get(key) is not None), None)
    if name == "scatter":
        tensors = given["output_tensors"]
    flat = [] if name in ("barrier", "monitored_barrier") else list(_flatten(tensors))
    peer = next((given[key] for key in ("root_rank", "dst", "src") if isinstance(given.get(key), int)), None)
    two_sided = name in ("send", "recv")
    return Collective(
        name=name,
        ranks=ranks,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in flat),
        dtype=str(flat[0].dtype).removeprefix("torch.") if flat else "",
        asynchronous=None if two_sided else bool(given.get("async_op", True)),
        peer=None if peer is None or name == "monitored_barrier" else ranks[peer],
    )


def _ranks(given: dict[str, Any]) -> tuple[int, ...]:
    import torch.distributed as dist
    from torch._C._distributed_c10d import ProcessGroup
    from torch.distributed.distributed_c10d import GroupName

    group: Any = given.get("group_name")
    if (boxed := given.get("process_group")) is not None:
        group = ProcessGroup.unbox(boxed)
    elif isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(GroupName(group))
    return tuple(dist.get_process_group_ranks(group))


def _flatten(tensors: Any) -> Iterator[Any]:
    if isinstance(tensors, list | tuple):
        for part in tensors:
            yield from _flatten(part)
    elif tensors is not None:
        yield tensors
