"""In the rank: small models on a simulated GPU, and what is alive after each step of a loop that trains them."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo  # which a process imports for its first optimizer: two seconds, so before a fork
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import simgpu
from checks.contracts.memory import count_pythons_bytes, not_tensors
from checks.contracts.snapshot import gradients, raw
from checks.gil_and_refcounting.counting import collector_asleep
from utils.ranks.locate import looking

Batches = list[tuple[Tensor, Tensor]]
ACTIVATIONS = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "silu": nn.SiLU}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


class Setting:
    """A model with one hidden layer, its optimizer, and batches.

    Args:
        case: with ``seed``, ``steps``, ``activation``, ``optimizer``, ``type``, ``gradients`` (there are some already).
        on_gpu: on a new simulated GPU; else on the host, in float64, to know what is right.
    """

    def __init__(self, case: dict[str, Any], on_gpu: bool = True) -> None:
        if on_gpu:
            simgpu.cluster(gpus_per_node=1)
        dice, kept = random.Random(case["seed"]), torch.get_rng_state()
        torch.manual_seed(case["seed"])
        width, hidden, classes, rows = (dice.randint(*one) for one in ((3, 9), (200, 300), (2, 5), (16, 40)))
        device, dtype = (simgpu.device(0) if on_gpu else "cpu"), getattr(torch, case["type"])
        layers = nn.Linear(width, hidden), ACTIVATIONS[case["activation"]](), nn.Linear(hidden, classes)
        self.model = nn.Sequential(*layers).to(dtype)
        self.model[2].bias.requires_grad_(False)  # somebody has frozen it
        batches = [[torch.randn(rows, size).to(dtype) for size in (width, classes)] for _ in range(case["steps"] + 1)]
        torch.set_rng_state(kept)
        self.model.to(device=device, dtype=dtype if on_gpu else torch.float64)
        every = [tuple(one.to(device=device, dtype=self.model[0].weight.dtype) for one in pair) for pair in batches]
        *self.batches, self.watched = every
        self.optimizer = OPTIMIZERS[case["optimizer"]](self.model.parameters())
        for parameter in self.model.parameters() if case["gradients"] else ():  # of somebody else
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        self.model[0].register_forward_hook(_somebody_elses)
        self.model[1].register_forward_hook(_somebody_elses)

    def step(self, x: Tensor, y: Tensor) -> float:
        """A step of training, and its loss."""
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Numbers and gradients of the model, and what its optimizer keeps, as they are now."""
        numbers = {name: raw(one).detach().double() for name, one in self.model.named_parameters()}
        return {
            "parameters": copy.deepcopy(numbers),
            "gradients": {n: g.double() for n, g in gradients(self.model).items()},
            "optimizer": dict(self._kept()),
        }

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        names = {id(one): name for name, one in self.model.named_parameters()}
        for thing, state in self.optimizer.state.items():
            of, parts = names.get(id(thing), f"{thing!r}"[:40]), state if isinstance(state, dict) else {"": state}
            for name, value in parts.items():
                kept = raw(value).detach() if isinstance(value, Tensor) else torch.tensor(0.0)
                yield f"{of}.{name}", kept.double()


def _somebody_elses(*_: Any) -> None:
    return None


class Looks:
    """Counts what is alive, whenever it is asked to: bytes on the GPU, tensors, bytes of all else in Python."""

    def __init__(self) -> None:
        self.found: dict[str, list[int]] = {"GPU": [], "tensors": [], "host": []}

    def look(self, *_: Any) -> None:
        with looking:
            self.found["GPU"].append(torch.simgpu.memory_allocated(0))
            self.found["tensors"].append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))
        self.found["host"].append(tracemalloc.get_traced_memory()[0])


def rehearse(case: dict[str, Any], loop: Callable[[Setting, Looks], Any]) -> dict[str, list[int]]:
    """What a loop that keeps nothing leaves alive after each step, and when it is over."""
    looks = Looks()
    with counted():
        one = Setting(case)
        loop(one, looks)
        looks.look()
    return looks.found


@contextlib.contextmanager
def counted(answer: Any = None) -> Iterator[dict[str, int]]:
    """In the ``with`` block: no automatic collection, and Python counts the bytes that it uses.

    Afterwards: calls of the ``collector``, and bytes of numbers and arrays that the answer has ``kept`` for itself.
    """
    found, before = {}, not_tensors(answer)
    with collector_asleep() as asked:
        count_pythons_bytes()
        yield found
    found |= {"collector": len(asked), "kept": not_tensors(answer) - before}
