"""For two loops: a small model on a simulated GPU, and what is alive after each of its steps."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

import torch
import torch._dynamo  # which a process imports for its first optimizer: two seconds, so before a fork
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import simgpu
from checks.engine import refuse

SETTLED = 2  # the step, from 0, after which nothing more may pile up
BLOCK = 512  # bytes: the smallest piece that a GPU's allocator hands out
NOISE = 8_000  # blocks of Python's memory that may be more at the end: a layer's outputs in a step are 16,384 numbers


@contextlib.contextmanager
def asleep() -> Iterator[list[str]]:
    """In the block the cycle collector runs only where somebody asks for it, and that is noted."""
    asked: list[str] = []
    gc.freeze()  # who looks at all objects sees those that are made from here on: hundreds, not 300,000
    gc.disable()
    gc.callbacks.append(lambda phase, _: asked.append(phase))
    try:
        yield asked
    finally:
        gc.callbacks.pop()
        gc.enable()


class Loop:
    """A model, its optimizer, which has made a step, and batches."""

    def __init__(self, steps: int) -> None:
        simgpu.cluster(gpus_per_node=1)
        torch.manual_seed(steps)
        with simgpu.device(0):
            self.model = nn.Sequential(nn.Linear(5, 256), nn.Tanh(), nn.Linear(256, 3))
            (x, y), *self.batches = [(torch.randn(64, 5), torch.randn(64, 3)) for _ in range(steps + 1)]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        mse_loss(self.model(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.alive: list[tuple[int, int, int]] = []

    def look(self, *_: object) -> None:
        """Note what is alive: bytes on the GPU, tensors, blocks of Python's memory."""
        tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
        self.alive.append((torch.simgpu.memory_allocated(0), tensors, sys.getallocatedblocks()))

    @contextlib.contextmanager
    def watched(self, what_stays: str) -> Iterator[None]:
        """Around a learner's loop that calls ``look`` in each step: refuse it if something piles up, or stays."""
        before = torch.simgpu.memory_allocated(0)
        with asleep() as asked:
            yield
            self.optimizer.zero_grad()
            left = torch.simgpu.memory_allocated(0) - before
        fault = "each batch is trained on once, also after a broken one"
        refuse(len(self.alive) != len(self.batches), fault, measured=f"{len(self.alive)} steps")
        settled = self.alive[SETTLED:]
        steps = len(settled) - 1
        gpu, tensors, host = (max(kind) - kind[0] for kind in zip(*settled, strict=True)) if settled else (0, 0, 0)
        number = f"a tensor with one number stays for each step and takes {BLOCK} bytes: keep plain numbers"
        fault = number if gpu <= steps * BLOCK else what_stays
        refuse(gpu > 0, fault, measured=f"{gpu:,} bytes more in {steps} steps", expected="0 bytes")
        fault = "the GPU's memory does not grow, but the host's does: tensors pile up"
        refuse(tensors > 0, fault, measured=f"{tensors} tensors more in {steps} steps", expected=0)
        fault = "no tensor stays, but plain numbers pile up in the host's memory, in lists say"
        refuse(host > NOISE, fault, measured=f"{host:,} more in {steps} steps", expected="next to none")
        fault = f"{what_stays}: some of it is still there when the function has returned"
        refuse(left > 0, fault, measured=f"{left:,} bytes", expected="0 bytes")
        fault = "calls gc.collect(), which looks at every object there is: let nothing hold what is not needed"
        refuse(asked, fault, measured=f"{len(asked) // 2} calls", expected=0)

    def weights(self) -> Tensor:
        return torch.cat([weight.detach().cpu().flatten() for weight in self.model.parameters()])
