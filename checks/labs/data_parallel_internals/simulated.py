"""What the checks of this lab share: simulated GPUs for a case, and what crosses between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

import simgpu
from checks.engine import gpus, refuse


def cluster(devices: list[int], **options: Any) -> list[torch.device]:
    """These GPUs, of a machine that has one more."""
    gpus.begin()
    simgpu.cluster(gpus_per_node=max(devices) + 2, **options)
    return [simgpu.device(number) for number in devices]


@contextlib.contextmanager
def unraced() -> Iterator[list[Any]]:
    """Streams wait for each other, also for whoever reads afterwards the tensors that are put in the list."""
    tensors: list[Any] = []
    with simgpu.races() as found:
        yield tensors
        gpus.go_on(tensors)
    raced = gpus.unordered(found)
    refuse(raced, f"nothing says which of two streams comes first, and a wait is missing: {' '.join(raced)[:300]}")


def values(tensor: Any) -> torch.Tensor:
    """Its numbers, on the host."""
    found: torch.Tensor = gpus.plain(tensor)["value"]
    return found


def links(copies: dict[str, int]) -> str:
    return ", ".join(f"{link}: {nbytes:,}" for link, nbytes in copies.items()) or "no copies"


def refuse_host(copies: dict[str, int], when: str) -> None:
    through = {link: nbytes for link, nbytes in copies.items() if "host" in link}
    refuse(through, f"{when} tensors go through the host: copy from GPU to GPU", measured=links(through))


def refuse_left(before: list[int], words: str) -> None:
    """Nothing is held on any GPU that was not there before."""
    left = [max(0, now - then) for now, then in zip(gpus.held(), before, strict=True)]
    refuse(any(left), words, measured=f"bytes on each GPU: {left}", expected="none")


def refuse_late(spans: dict[int, tuple[float, float]], waits: int) -> None:
    """Of the times in which GPUs compute, no one begins after another has ended."""
    late = max((start, gpu) for gpu, (start, _) in spans.items())
    done = min((end, gpu) for gpu, (_, end) in spans.items())
    why = "a copy waits for all that its GPU was given before: copy everything first, then run"
    why = "the host waits for a result: only launch" if waits else why
    refuse(late[0] > done[0], f"GPU {late[1]} begins to compute when GPU {done[1]} has ended: {why}")
