"""Exercises 2 and 4: two streams that use the same memory wait for each other, also for whoever goes on afterwards.

(Memory that is given to a new tensor too early, ``record_stream``, is not asked for in this lab.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from utils.checks.contracts import Broken, Facts


def go_on(model: Any, loss: Any) -> None:
    """What whoever called the step does next, in the streams that are current: the loss and the gradients are read."""
    import torch

    for tensor in (loss, *(parameter.grad for parameter in model.parameters())):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "simgpu":
            tensor.detach().sum()


def plain(races: Any) -> list[str]:
    """What ``simgpu.races`` has found, in words."""
    return [f"{race.first}; {race.second}" for race in races if race.kind == "order"]


def judge_races(step: Facts) -> Iterator[Broken]:
    if found := step["races"]:
        words = f"nothing says which of two streams comes first, and a wait is missing between them: {found[0][:300]}"
        yield Broken("work:4 race", words, f"{len(found)} races", 0)
