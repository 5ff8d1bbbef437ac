"""For tests of simulated GPUs of ranks: a GPU for this rank, in a world that other tests use too."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

import simgpu


def join(numbers: bool = True, nodes: int = 1, gpu: Any = "H100", **options: Any) -> torch.device:
    """A new cluster and a new process group on every rank; the rank's device."""
    simgpu.join(gpu, nodes, numbers=numbers, **options)
    dist.init_process_group("simccl")
    return torch.device("simgpu", int(os.environ["RANK"]) % (int(os.environ["WORLD_SIZE"]) // nodes))


def communication(prof: simgpu.Profile) -> list[tuple[str, float, float]]:
    """Name, start and end of what ranks did together, in microseconds."""
    found = [event for event in prof.events if event.place.startswith("rank")]
    return [(event.name, round(event.start * 1e6, 3), round(event.end * 1e6, 3)) for event in found]
