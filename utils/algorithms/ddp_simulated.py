"""The DDP of ``ddp.py`` on a simulated cluster: one replica on each simulated GPU, and the program of the real ranks.

On real ranks N processes each have one replica. Here one process has them all: it runs the N forward passes in N
threads, and one backward pass through all of them, in which every GPU has its own host thread. With ``gil=False``
these threads do not wait for each other, as N processes do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import parallel_apply

from utils import simgpu
from utils.algorithms.ddp import BucketedDDP


@dataclass
class Meeting:
    """One all-reduce: the tensors of the replicas that have called it so far."""

    tensors: dict[int, Tensor] = field(default_factory=dict)
    work: Any = None

    def wait(self) -> None:
        """The GPUs' streams wait for it; the host goes on.

        Raises:
            RuntimeError: not all replicas have called it.
        """
        if self.work is None:
            raise RuntimeError(
                f"only the replicas {sorted(self.tensors)} have called this all-reduce: real ranks would wait for ever"
            )
        self.work.wait()


class Exchange:
    """Where the replicas' all-reduces meet: the first call of each replica belongs together, then the second, …

    Args:
        size: how many replicas.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._open: dict[int, Meeting] = {}  # by number of the call; some replicas are still to come
        self._calls = [0] * size
        self._lock = threading.Lock()

    def all_reduce(self, replica: int, tensor: Tensor) -> Meeting:
        """What a replica calls; the last one sets it off."""
        with self._lock:  # (each GPU may have its own backward thread)
            index = self._calls[replica]
            self._calls[replica] += 1
            meeting = self._open.setdefault(index, Meeting())
            meeting.tensors[replica] = tensor
            if len(meeting.tensors) == self.size:
                del self._open[index]
                meeting.work = simgpu.all_reduce([meeting.tensors[i] for i in range(self.size)], async_op=True)
        return meeting


class _Nothing:
    def wait(self) -> None:
        pass


class Replica:
    """A communicator for ``BucketedDDP``: the replica on one simulated GPU.

    Args:
        exchange: where it meets the others.
        number: which replica.
    """

    def __init__(self, exchange: Exchange, number: int) -> None:
        self.exchange, self.number, self.size = exchange, number, exchange.size

    def all_reduce(self, tensor: Tensor) -> Meeting:
        """As ``Communicator`` says."""
        return self.exchange.all_reduce(self.number, tensor)

    def broadcast(self, tensor: Tensor) -> _Nothing:
        """Nothing is sent: the replicas are made from one seed, so they are equal already."""
        return _Nothing()


class SimulatedDDP:
    """Replicas of a model on all GPUs of the current simulated cluster (make it with ``gil=False``).

    Args:
        make_model: makes a replica; called once for each GPU, with the same seed.
        bucket_cap_mb: as in ``BucketedDDP``. The plan is made once, from the last layer to the first.

    Attributes:
        devices: the GPUs.
        models: a model for each GPU.
        replicas: the same models, wrapped.
    """

    def __init__(self, make_model: Callable[[], nn.Module], bucket_cap_mb: float = 25.0) -> None:
        self.devices = [torch.device("simgpu", i) for i in range(torch.simgpu.device_count())]
        self.models = []
        for device in self.devices:
            torch.manual_seed(0)
            with device:
                self.models.append(make_model())
        self.wrap(bucket_cap_mb)

    def wrap(self, bucket_cap_mb: float) -> None:
        """Wrap the same models anew, with other buckets; gradients of earlier steps are dropped."""
        exchange = Exchange(len(self.models))
        self.replicas = []  # the wrappers of before go, and their hooks with them
        for i, model in enumerate(self.models):
            model.zero_grad()
            self.replicas.append(
                BucketedDDP(
                    model,
                    bucket_cap_mb=bucket_cap_mb,
                    broadcast_buffers=False,
                    rebuild=False,
                    communicator=Replica(exchange, i),
                )
            )

    def step(self, inputs: list[Tensor], loss: Callable[[Tensor], Tensor]) -> None:
        """Forward and backward pass of all replicas; ``inputs`` has a tensor for each GPU."""
        outputs = parallel_apply(self.replicas, [(one,) for one in inputs])
        torch.autograd.backward([loss(output) for output in outputs])
