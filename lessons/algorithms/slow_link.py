"""Real all-reduces over a link that is as slow as you like, so that one machine shows what a slow network does.

The ranks of one machine talk through memory: communication is over before it can be seen. A ``SlowLink`` does the real
all-reduce, then holds its result back until the time has passed that ``hardware.links`` works out for the slow link.
A thread of its own does this, one message after the other, as a network card would; meanwhile the rank computes.
"""

from __future__ import annotations

import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from lessons.algorithms.ddp import Ranks
from utils.hardware.links import Link, ring_all_reduce

COMMUNICATION = "all-reduce on the slow link"
"""What the profiler calls the time that a message takes."""


class SlowLink:
    """A link between all ranks, with its own latency and bandwidth. Every rank must make it at the same time.

    Args:
        link: how slow. An all-reduce takes as long as a ring all-reduce over this link.

    Attributes:
        sent: bytes of each message so far, in order.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sent: list[int] = []
        self._group = dist.new_group()  # what else the ranks say to each other must not get in between
        self._messages: queue.SimpleQueue[tuple[Tensor, Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry, name="slow link", daemon=True)
        self._thread.start()

    def all_reduce(self, tensor: Tensor) -> Future:
        """Sum a tensor over all ranks, in place.

        Returns:
            At once, a future: its value is the tensor, when the link has carried it.

        Raises:
            RuntimeError: the link is closed.
        """
        if not self._thread.is_alive():
            raise RuntimeError("this slow link is closed: make another one")
        future: Future = Future()
        self.sent.append(tensor.nbytes)
        self._messages.put((tensor, future))
        return future

    def close(self) -> None:
        """End the thread, after the messages that are under way."""
        self._messages.put(None)
        self._thread.join()

    def _carry(self) -> None:
        meet = torch.zeros(1)
        while (message := self._messages.get()) is not None:
            tensor, future = message
            try:
                dist.all_reduce(meet, group=self._group)  # a message begins when its last rank is there
                with torch.profiler.record_function(COMMUNICATION):
                    done = time.perf_counter() + ring_all_reduce(tensor.nbytes, dist.get_world_size(), self.link)
                    dist.all_reduce(tensor, group=self._group)
                    time.sleep(max(0.0, done - time.perf_counter()))
                future.set_result(tensor)
            except Exception as error:  # the rank that waits must hear of it
                future.set_exception(error)


class SlowRanks(Ranks):
    """The real ranks, with a slow link for all-reduces: a communicator for ``BucketedDDP``."""

    def __init__(self, link: SlowLink) -> None:
        super().__init__()
        self.link = link

    def all_reduce(self, tensor: Tensor) -> Future:
        return self.link.all_reduce(tensor)


def slow_hook(link: SlowLink, bucket):  # (torch refuses annotations that are strings, as they all are in this file)
    """A communication hook for torch's DDP: ``model.register_comm_hook(link, slow_hook)``.

    Args:
        link: over which gradients go.
        bucket: a ``dist.GradBucket``.
    """
    return link.all_reduce(bucket.buffer()).then(lambda summed: summed.value().div_(dist.get_world_size()))
