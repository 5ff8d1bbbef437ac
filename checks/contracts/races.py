"""Two streams of simulated GPUs that use the same memory wait for each other, also for whoever goes on afterwards.

(Memory that is given to a new tensor too early, ``record_stream``, is not asked for in the labs.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from checks.contracts.contract import Broken, Facts


def go_on(tensors: Iterable[Any]) -> None:
    """What whoever called does next, in the streams that are current: these are read, a loss and gradients, say.

    (Inside of ``gpus.seen()``, too: when that ends, the host has waited for everything.)
    """
    import torch

    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "simgpu":
            tensor.detach().sum()


def plain(races: Any) -> list[str]:
    """What ``simgpu.races`` has found, in words."""
    return [f"{race.first}; {race.second}" for race in races if race.kind == "order"]


def judge_races(step: Facts) -> Iterator[Broken]:
    if found := step["races"]:
        words = f"nothing says which of two streams comes first, and a wait is missing between them: {found[0][:300]}"
        yield Broken("work:4 race", words, f"{len(found)} races", 0)
