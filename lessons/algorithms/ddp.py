"""DistributedDataParallel from nothing: broadcast, hooks, buckets, overlap. What its lecture takes apart.

The words: each rank has a **replica** of the model. A **bucket** is a flat tensor with the gradients of some
parameters, reduced together. A bucket is **ready** when the backward pass has put all of its gradients in. It is
**launched** when its all-reduce begins, while the backward pass goes on.

What ``BucketedDDP`` does, in the order in which it happens:

1. At the start every rank takes over rank 0's parameters and buffers (``broadcast``).
2. Buckets are planned from the last parameter to the first, because the backward pass begins at the last layer.
3. A hook on each parameter puts its gradient, divided by the number of ranks, into its bucket.
4. A bucket that is ready is launched, but never before the bucket in front of it: all ranks must launch in one order.
5. When the backward pass ends, what is left is launched (the **flush**), and all buckets are waited for.
6. After the first step the buckets are planned anew, in the order in which gradients really came (the **rebuild**).

The ranks talk through a ``Communicator``: ``Ranks`` are those of torch.distributed; ``overlap.SlowRanks`` are slower.

Source: Li and others: PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020, section 3.2.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.autograd import Variable
from torch.nn.parallel.distributed import _find_tensors

MB = 1024 * 1024


# ---------------------------------------------------------------------- buckets
class Handle(Protocol):
    """A collective that is under way."""

    def wait(self) -> Any:
        """Go on only when it is done."""


def plan_buckets(parameters: Sequence[Tensor], cap: float, first: float | None = None) -> list[list[int]]:
    """Which parameters share a bucket. Each bucket holds parameters of one type on one device.

    As torch does it: a bucket takes parameters until it has reached its cap, so it can end up larger than that.

    Args:
        parameters: in the order in which their gradients are expected.
        cap: bytes after which a bucket is full.
        first: the same for the first bucket, so that communication can begin early. None: ``cap``.

    Returns:
        For each bucket, in the order of launching, the indices of its parameters.
    """
    check_caps(cap, cap if first is None else first)
    full: list[list[int]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    limits: dict[tuple[torch.dtype, torch.device], float] = {}
    for index, parameter in enumerate(parameters):
        kind = (parameter.dtype, parameter.device)
        members, nbytes = open_buckets.pop(kind, ([], 0))
        members, nbytes = [*members, index], nbytes + parameter.nbytes
        if nbytes >= limits.get(kind, cap if first is None else first):
            full.append(members)
            limits[kind] = cap
        else:
            open_buckets[kind] = (members, nbytes)
    rest = [members for members, _ in open_buckets.values()]
    return sorted(full + rest, key=max)  # in the order in which they will be ready


def check_caps(*caps: float) -> None:
    if min(caps) <= 0:
        raise ValueError(f"a bucket's cap must be more than 0 bytes, not {min(caps)}")


@dataclass
class Slot:
    """A parameter's place in a bucket.

    Args:
        parameter: whose gradient it is.
        view: the part of the bucket's flat tensor that holds it, in the parameter's shape.
        filled: the gradient of this step is in it.
    """

    parameter: nn.Parameter
    view: Tensor
    filled: bool = False


class Bucket:
    """Gradients that are reduced together.

    Args:
        parameters: of one type, on one device.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        like = parameters[0]
        self.flat = torch.zeros(sum(one.numel() for one in parameters), dtype=like.dtype, device=like.device)
        parts = self.flat.split([one.numel() for one in parameters])
        self.slots = [Slot(one, _shaped(part, one)) for one, part in zip(parameters, parts, strict=True)]
        self.missing = len(self.slots)
        self.handle: Handle | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that an all-reduce of this bucket is given."""
        return self.flat.nbytes

    def reset(self) -> None:
        """Before a backward pass: nothing has come yet, and nothing of a pass that failed is under way any more."""
        self.wait()
        self.missing = len(self.slots)
        for slot in self.slots:
            slot.filled = False

    def wait(self) -> None:
        """Until the all-reduce, if one was launched, is done."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.wait()


def _shaped(part: Tensor, parameter: nn.Parameter) -> Tensor:
    """A part of a bucket with the parameter's shape, and its layout in memory if it leaves no gaps (channels_last)."""
    if not parameter.is_contiguous() and is_non_overlapping_and_dense_or_false(parameter):
        return part.as_strided(parameter.shape, parameter.stride())
    return part.view(parameter.shape)


# ---------------------------------------------------------------------- who talks
class Communicator(Protocol):
    """How one replica talks to the others. Both collectives work in place and return at once."""

    size: int

    def all_reduce(self, tensor: Tensor) -> Handle:
        """Every rank's tensor becomes the sum of all ranks' tensors."""

    def broadcast(self, tensor: Tensor) -> Handle:
        """Every rank's tensor becomes rank 0's."""


class Ranks:
    """The real ranks of a process group.

    Args:
        group: None: all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.size = dist.get_world_size(group)

    def all_reduce(self, tensor: Tensor) -> Handle:
        return dist.all_reduce(tensor, group=self.group, async_op=True)

    def broadcast(self, tensor: Tensor) -> Handle:
        return dist.broadcast(tensor, group=self.group, group_src=0, async_op=True)


# ---------------------------------------------------------------------- the module
class BucketedDDP(nn.Module):
    """A module whose gradients are averaged over all ranks while the backward pass runs.

    Args:
        module: this rank's replica. The others need the same architecture; they get rank 0's numbers.
        bucket_cap_mb: a bucket is launched when it has this many MiB. ``float("inf")``: one bucket for everything.
        first_bucket_mb: the same for the first bucket of a rebuilt plan. None: 1 if ``bucket_cap_mb`` is 25, else
            ``bucket_cap_mb``; so does torch.
        find_unused_parameters: allow that some parameters get no gradient. Costs one small all-reduce each step.
        forward_sync_buffers: before each forward pass take over rank 0's buffers (BatchNorm's running means).
        rebuild: plan the buckets anew after the first step.
        communicator: how this replica talks to the others. None: the real ranks of the default process group.

    Raises:
        ValueError: no parameter needs a gradient, or a cap is not positive.
        RuntimeError: in the backward pass, if parameters get no gradient and ``find_unused_parameters`` is False.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        bucket_cap_mb: float = 25.0,
        first_bucket_mb: float | None = None,
        find_unused_parameters: bool = False,
        forward_sync_buffers: bool = True,
        rebuild: bool = True,
        communicator: Communicator | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.ranks = Ranks() if communicator is None else communicator
        if first_bucket_mb is None:
            first_bucket_mb = 1.0 if bucket_cap_mb == 25 else bucket_cap_mb
        self.cap, self.first_cap = bucket_cap_mb * MB, first_bucket_mb * MB
        check_caps(self.cap, self.first_cap)
        self.find_unused_parameters = find_unused_parameters
        self.rebuild_next = rebuild and not find_unused_parameters  # an order without some of them would be no plan
        self.trained = [one for one in module.parameters() if one.requires_grad]  # (a shared parameter comes once)
        if not self.trained:
            raise ValueError("no parameter of this module needs a gradient: there is nothing to average")
        self._synchronize = True  # what forward passes ask for: False under no_sync
        self._awaited: bool | None = None  # a forward pass awaits its backward pass; shall that synchronize?
        self._pass: int | None = None  # autograd's number of the backward pass that runs
        self._pass_synchronizes = False
        self._arrived: list[nn.Parameter] = []
        self._used: set[nn.Parameter] = set()  # since the last all-reduce, so also under no_sync
        self._shared = list(module.buffers()) if forward_sync_buffers else []
        self._broadcast([*module.parameters(), *module.buffers()])
        backwards = self.trained[::-1]
        self._make([[backwards[i] for i in members] for members in plan_buckets(backwards, self.cap)])
        me = weakref.ref(self)  # a hook must not keep a replica alive that nobody uses any more

        def hook(parameter: nn.Parameter) -> None:
            if (ddp := me()) is not None:
                ddp._gradient_is_there(parameter)

        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(hook)

    # ------------------------------------------------------------------ what is called from outside
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        self._pass, self._awaited = None, self._synchronize
        synchronize = self._synchronize
        if synchronize:
            self._prepare()
        outputs = self.module(*args, **kwargs)
        # A backward pass begins at the outputs, so their hooks run first. It does what this forward pass was asked for.
        for output in _tensors_in(outputs):
            output.register_hook(lambda _: self._begin(synchronize))
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forward passes in here stay on their rank, and add up there."""
        before, self._synchronize = self._synchronize, False
        try:
            yield
        finally:
            self._synchronize = before

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "BucketedDDP cannot be copied or pickled: copy its .module and wrap the copy, or save a state_dict"
        )

    # ------------------------------------------------------------------ before the backward pass
    def _broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Take over rank 0's numbers, all tensors of one type in one message."""
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.data)  # (autograd need not know)
        flats = [torch.cat([tensor.reshape(-1) for tensor in alike]) for alike in kinds.values()]
        for handle in [self.ranks.broadcast(flat) for flat in flats]:
            handle.wait()
        for alike, flat in zip(kinds.values(), flats, strict=True):
            parts = flat.split([tensor.numel() for tensor in alike])
            torch._foreach_copy_(alike, [part.view(to.shape) for part, to in zip(parts, alike, strict=True)])

    def _make(self, plan: Sequence[Sequence[nn.Parameter]]) -> None:
        self.buckets = [Bucket(parameters) for parameters in plan]
        self._place = {slot.parameter: (bucket, slot) for bucket in self.buckets for slot in bucket.slots}

    def _prepare(self) -> None:
        if self.rebuild_next and len(self._arrived) == len(self.trained):
            self._rebuild()
        self._broadcast(self._shared)

    def _rebuild(self) -> None:
        """Plan the buckets in the order in which gradients came on rank 0: all ranks need the same plan."""
        self.rebuild_next = False
        number = {parameter: i for i, parameter in enumerate(self.trained)}
        order = torch.tensor([number[parameter] for parameter in self._arrived], device=self.trained[0].device)
        self.ranks.broadcast(order).wait()
        came = [self.trained[i] for i in order.tolist()]
        self._make([[came[i] for i in members] for members in plan_buckets(came, self.cap, self.first_cap)])

    # ------------------------------------------------------------------ while the backward pass runs
    def _begin(self, synchronize: bool) -> None:
        """A backward pass has reached the outputs."""
        running = torch._C._current_graph_task_id()
        if self._pass != running:
            self._pass, self._pass_synchronizes = running, False
            Variable._execution_engine.queue_callback(self._finish)  # runs when this backward pass ends
        if synchronize and not self._pass_synchronizes:
            self._pass_synchronizes, self._next = True, 0
            self._arrived.clear()
            for bucket in self.buckets:
                bucket.reset()

    def _gradient_is_there(self, parameter: nn.Parameter) -> None:
        """The hook: autograd has just added up this parameter's gradient."""
        if self._pass is None:  # it did not come through the outputs
            if self._awaited is None:  # nor did it begin with our forward pass
                return
            self._begin(self._awaited)
        self._used.add(parameter)
        if self._pass_synchronizes:
            self._arrived.append(parameter)
            bucket, slot = self._place[parameter]
            if slot.filled:  # its bucket may be on its way already
                raise RuntimeError(
                    f"the gradient of {self._name(parameter)} came twice in one backward pass; "
                    "with torch.utils.checkpoint, say use_reentrant=False"
                )
            self._fill(slot)
            bucket.missing -= 1
            self._launch_ready()

    def _fill(self, slot: Slot) -> None:
        """Put the gradient, divided by the number of ranks, into the bucket, and let it live there."""
        if torch.is_grad_enabled():  # (in a backward pass it is not, but with create_graph=True)
            with torch.no_grad():
                return self._fill(slot)
        parameter, slot.filled = slot.parameter, True
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise NotImplementedError("a bucket cannot hold sparse gradients: use nn.Embedding(sparse=False)")
        if parameter.grad is None:  # nothing to add on this rank
            slot.view.zero_()
        elif parameter.grad is slot.view:
            slot.view.mul_(1 / self.ranks.size)
        else:
            torch.mul(parameter.grad, 1 / self.ranks.size, out=slot.view)
            parameter.grad = slot.view  # the copy that autograd made is free again

    def _launch_ready(self) -> None:
        while self._next < len(self.buckets) and self.buckets[self._next].missing == 0:
            bucket = self.buckets[self._next]
            bucket.handle = self.ranks.all_reduce(bucket.flat)
            self._next += 1

    # ------------------------------------------------------------------ when the backward pass has ended
    def _finish(self) -> None:
        """The flush: launch what is left, then wait for all of it."""
        self._pass = self._awaited = None
        if not self._pass_synchronizes:
            return
        missing = [slot for bucket in self.buckets for slot in bucket.slots if not slot.filled]
        if missing and not self.find_unused_parameters:
            raise RuntimeError(self._complaint(missing))
        kept = [self._fill_without_gradient(slot) for slot in missing]
        for bucket in self.buckets:
            bucket.missing = 0
        self._launch_ready()
        if self.find_unused_parameters:  # only now: all ranks launch all buckets first
            unused = self._unused_everywhere()
            for slot, own in zip(missing, kept, strict=True):
                slot.parameter.grad = own if slot.parameter in unused else slot.view
        for bucket in self.buckets:
            bucket.wait()
        self._used.clear()

    def _fill_without_gradient(self, slot: Slot) -> Tensor | None:
        """Give a bucket what it has for a parameter that this pass did not use. Returns its gradient as it was."""
        own = slot.parameter.grad
        own = own.clone() if own is slot.view else own
        self._fill(slot)
        return own

    def _unused_everywhere(self) -> set[nn.Parameter]:
        """The parameters that no rank has a gradient for: ranks add up who has one."""
        counts = torch.tensor([one in self._used for one in self.trained], dtype=torch.int32)
        counts = counts.to(self.trained[0].device)
        self.ranks.all_reduce(counts).wait()
        return {one for one, count in zip(self.trained, counts.tolist(), strict=True) if count == 0}

    def _complaint(self, missing: Sequence[Slot]) -> str:
        listed = ", ".join(self._name(slot.parameter) for slot in missing[:5]) + (", …" if len(missing) > 5 else "")
        return (
            f"{len(missing)} of {len(self.trained)} parameters got no gradient in this backward pass: {listed}. "
            "Give them a part in the loss, or say find_unused_parameters=True"
        )

    def _name(self, wanted: nn.Parameter) -> str:
        return next(name for name, parameter in self.module.named_parameters() if parameter is wanted)


def _tensors_in(outputs: Any) -> list[Tensor]:
    """The tensors that need gradients in what a module returns: alone, or in lists, tuples, dicts, dataclasses."""
    found = _find_tensors(outputs)
    return [one for one in found if one.requires_grad and not one.is_leaf]  # (a hook on a parameter would stay)
