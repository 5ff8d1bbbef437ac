"""For two loops: a small model on a simulated GPU, and what is alive after each of its steps."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import torch
import torch._dynamo  # which a process imports for its first optimizer: two seconds, so before a fork
from torch import Tensor, nn

import simgpu
from checks.engine import refuse

OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
CASES = [{"steps": 7, "optimizer": "momentum"}, {"steps": 1, "optimizer": "Adam"}]
SETTLED = 2  # the step, from 0, after which nothing more may pile up
BLOCK = 512  # bytes: the smallest piece that a GPU's allocator hands out
ON_THE_HOST, NOISE = 600, 60_000  # bytes that a step may leave in Python's memory: a short text; and the loop in all


@contextlib.contextmanager
def asleep() -> Iterator[list[str]]:
    """In the block the cycle collector runs only where somebody asks for it, and that is noted."""
    asked: list[str] = []

    def note(phase: str, _: Any) -> None:
        asked.append(phase)

    gc.freeze()  # who looks at all objects sees those that are made from here on: hundreds, not 300,000
    gc.disable()
    gc.callbacks.append(note)
    try:
        yield asked
    finally:
        gc.callbacks.remove(note)
        gc.enable()


class Loop:
    """A model, its optimizer, and batches. The last batch but for ``batches`` is ``watched``."""

    def __init__(self, case: dict[str, Any]) -> None:
        simgpu.cluster(gpus_per_node=1)
        torch.manual_seed(case["steps"])
        device, kind = simgpu.device(0), torch.float32 if case["optimizer"] == "momentum" else torch.float64
        self.model = nn.Sequential(nn.Linear(5, 256), nn.Tanh(), nn.Linear(256, 3)).to(device=device, dtype=kind)
        self.model[2].bias.requires_grad_(False)  # somebody has frozen it
        for layer in self.model:
            layer.register_forward_hook(self.hook)  # of somebody else
        sizes = range(case["steps"] + 1)
        *self.batches, self.watched = [
            (torch.randn(64, 5).to(device, kind), torch.randn(64, 3).to(device, kind)) for _ in sizes
        ]
        self.optimizer = OPTIMIZERS[case["optimizer"]](self.model.parameters())
        self.steps, self.alive = case["steps"], list[tuple[int, int, int]]()

    def hook(self, *_: Any) -> None:
        """Does nothing."""

    def look(self, *_: Any) -> None:
        """Note what is alive, beside weights, gradients and what the optimizer keeps: bytes on the GPU, tensors, bytes
        of lists."""
        state = [one for part in self.optimizer.state.values() for one in part.values() if isinstance(one, Tensor)]
        parameters = list(self.model.parameters())
        known = [*parameters, *state, *(one.grad for one in parameters if one.grad is not None)]
        on_gpu = [one for one in known if one.device.type != "cpu"]
        nbytes = torch.simgpu.memory_allocated(0) - sum(-(-one.nbytes // BLOCK) * BLOCK for one in on_gpu)
        everything = gc.get_objects()
        tensors = sum(issubclass(type(one), Tensor) for one in everything)
        tensors -= len(known) + len(on_gpu)  # (in a simulated one is another, on the host)
        lists = [one for one in everything if type(one) is list]
        arrays = [part for one in lists for part in one if type(part) is numpy.ndarray]
        self.alive.append((nbytes, tensors, sum(map(sys.getsizeof, lists)) + sum(one.nbytes for one in arrays)))

    @contextlib.contextmanager
    def watched_for(self, what_stays: str) -> Iterator[None]:
        """Around a learner's loop that calls ``look`` in each step: refuse it if something piles up, or stays."""
        before = torch.simgpu.memory_allocated(0) - sum(-(-p.nbytes // BLOCK) * BLOCK for p in self.model.parameters())
        with asleep() as asked:
            yield
            self.look()
        *self.alive, (left, *_) = self.alive
        words = "each batch is trained on once, also after a broken one"
        refuse(len(self.alive) != self.steps, words, measured=f"{len(self.alive)} steps", expected=self.steps)
        self._refuse_piles(what_stays)
        words = f"{what_stays}: some of it is still there when the function has returned"
        refuse(left > before, words, measured=f"{left - before:,} bytes", expected="0 bytes")
        words = "calls gc.collect(), which looks at every object there is: let nothing hold what is not needed"
        refuse(asked, words, measured=f"{len(asked) // 2} calls", expected=0)

    def _refuse_piles(self, what_stays: str) -> None:
        steps = len(self.alive) - 1 - SETTLED
        if steps > 0:
            first, *later = self.alive[SETTLED:]
            gpu, tensors, host = (max(one[kind] for one in later) - first[kind] for kind in range(3))
            number = f"a tensor with one number stays for each step and takes {BLOCK} bytes: keep plain numbers"
            words = number if gpu <= steps * BLOCK else what_stays
            refuse(gpu > 0, words, measured=f"{gpu:,} bytes more in {steps} steps", expected="0 bytes")
            words = "the GPU's memory does not grow, but the host's does: tensors pile up"
            refuse(tensors > 0, words, measured=f"{tensors} tensors more in {steps} steps", expected=0)
            words = "no tensor stays, but numbers pile up in the host's memory: arrays or lists"
            many = host > ON_THE_HOST * steps + NOISE
            refuse(many, words, measured=f"{host:,} bytes in {steps} steps", expected="next to nothing")

    def trained(self) -> dict[str, Any]:
        """What the training has made of the model and its optimizer."""
        parameters = list(self.model.parameters())
        words = "the model is left in another mode than before: call model.train() after model.eval()"
        refuse(not all(one.training for one in self.model.modules()), words)
        words = "`requires_grad` of the weights is left changed: what somebody has frozen stays frozen, and no more"
        refuse([one.requires_grad for one in parameters] != [True, True, True, False], words)
        state = [part[name] for part in self.optimizer.state.values() for name in sorted(part)]
        return {
            "the weights after the training": _numbers(parameters),
            "the gradients after the last step": _numbers([one.grad for one in parameters]),
            "what the optimizer keeps for its next step": _numbers(state),
        }


def _numbers(tensors: list[Any]) -> Tensor:
    found = [one.detach().cpu().flatten() for one in tensors if isinstance(one, Tensor)]
    return torch.cat(found) if found else torch.zeros(0)
