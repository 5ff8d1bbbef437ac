"""Too much for a simulated GPU, or for the computer that computes its numbers: refused before that memory is taken."""

from __future__ import annotations

import resource
from collections import namedtuple
from contextlib import contextmanager

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu

GPU = "simgpu:0"
WIDE = 2**18


@contextmanager
def at_most(more: int):
    """Inside, this process gets only so many bytes more: who asks for them ends with another error."""
    now = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + more, now[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, now)


TOO_MUCH = {
    "zeros": lambda x: torch.zeros(30 * 2**30, device=GPU),
    "rand": lambda x: torch.rand(30 * 2**30, device=GPU),
    "arange": lambda x: torch.arange(20 * 2**30, device=GPU),
    "eye": lambda x: torch.eye(WIDE, device=GPU),
    "broadcast": lambda x: x * x.T,
    "product": lambda x: x @ x.T,
    "repeated": lambda x: x.repeat(1, WIDE),
    "expanded": lambda x: x.expand(-1, WIDE).contiguous(),
    "joined": lambda x: torch.cat([x.expand(-1, WIDE // 2)] * 2, 1),
    "padded": lambda x: F.pad(x, (0, WIDE)),
    "distances": lambda x: torch.cdist(x, x),
    "larger": lambda x: F.interpolate(x[None, None, :8], size=(WIDE, WIDE)),
    "a layer": lambda x: nn.Linear(WIDE, WIDE, device=GPU),
    "scores of attention": lambda x: (x[None] @ x[None].mT).softmax(-1),
    "one hot": lambda x: F.one_hot(torch.zeros(2 * WIDE, dtype=torch.long, device=GPU), WIDE),
    "from the host": lambda x: torch.ones(1).expand(30 * 2**30).to(GPU),
}


@pytest.mark.parametrize("make", TOO_MUCH.values(), ids=TOO_MUCH)
def test_out_of_memory_comes_before_the_host_has_to_give_any(make) -> None:
    simgpu.cluster(gpus_per_node=1)
    x = torch.ones(WIDE, 1, device=GPU)
    before = torch.simgpu.memory_allocated()
    with at_most(2**30), pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate \d+\.00 GiB. GPU 0"):
        make(x)
    assert torch.simgpu.memory_allocated() <= before + 8 * WIDE * 512
    assert x.sum().item() == WIDE


def test_where_the_computer_has_too_little_there_is_a_sentence(monkeypatch) -> None:
    simgpu.cluster(gpus_per_node=1)
    x = torch.ones(2**14, 1, device=GPU)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: namedtuple("Memory", "available")(2**29))
    with pytest.raises(MemoryError, match=r"GPU 0 has room for 1.00 GiB more, but this computer.*numbers=False"):
        x @ x.T
    assert torch.ones(2**26, device=GPU).sum().item() == 2**26  # 256 MiB: there is room
    simgpu.cluster(gpus_per_node=1, numbers=False)
    x = torch.ones(2**14, 1, device=GPU)
    assert (x @ x.T).nbytes == 2**30


def test_views_writes_in_place_and_mistakes_need_no_room() -> None:
    simgpu.cluster(gpus_per_node=1, memory=2**20)
    x = torch.ones(400, 512, device=GPU)  # 800 of 1,024 KiB
    assert x.view(-1).expand(1000, -1).shape == (1000, 204_800)
    assert x.add_(x).sum().item() == 2 * x.numel()
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(3, device=GPU)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 800.00 KiB"):
        x + 1
