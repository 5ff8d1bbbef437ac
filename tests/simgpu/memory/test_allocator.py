"""Too little memory, what the caching allocator keeps, and the computer's own room."""

import gc
import resource
from collections import namedtuple
from contextlib import contextmanager

import psutil
import pytest
import torch
import torch.nn.functional as F
from simgpu_support import allocated
from torch import nn

import simgpu
from simgpu.memory.caching import CachingAllocator

MIB = 2**20


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=3)
    torch.manual_seed(0)


def test_too_large_a_tensor_raises_what_cuda_raises_and_counts_nothing():
    simgpu.cluster(gpus_per_node=2, memory=8 * MIB)
    x = torch.ones(MIB, device="simgpu:1")  # 4 MiB
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"out of memory\. Tried to allocate 5\.00 MiB\. GPU 1 .* 8\.00 MiB of which 4\.00 MiB is free",
    ):
        torch.empty(5 * MIB, dtype=torch.uint8, device="simgpu:1")
    assert allocated() == [0, 4 * MIB]
    assert torch.simgpu.max_memory_allocated(1) == 4 * MIB
    assert torch.simgpu.mem_get_info(1) == (4 * MIB, 8 * MIB)
    y = x + 1  # fits exactly
    with pytest.raises(torch.OutOfMemoryError):
        y + 1
    del x, y
    assert allocated() == [0, 0]


def _step(model, optimizer, rows):
    optimizer.zero_grad()
    loss = model(torch.ones(rows, 64, device="simgpu:0")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def _where_it_fails(rows, memory):
    """Train with a batch that is too large, then with a small one: where it failed, and two losses."""
    simgpu.cluster(gpus_per_node=1, memory=memory)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64), nn.Tanh()) * 4, nn.Linear(64, 64)).to("simgpu:0")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    place = "nowhere"
    try:
        with simgpu.profile() as prof:
            _step(model, optimizer, rows)
    except torch.OutOfMemoryError:
        place = prof.events[-1].phase if prof.events else "forward"
    optimizer.zero_grad()
    gc.collect()
    losses = [_step(model, optimizer, 4) for _ in range(3)]
    del prof, optimizer, model
    assert allocated() == [0]
    return place, losses


def test_training_goes_on_with_a_smaller_batch_wherever_memory_ran_out():
    places = {}
    for rows in range(100, 3000, 400):
        place, losses = _where_it_fails(rows, MIB)
        places[place] = places.get(place, 0) + 1
        assert losses[-1] < losses[0]
    assert {"forward", "backward"} <= set(places), places


def test_an_optimizer_that_finds_no_memory_leaves_a_ledger_that_is_right():
    model = nn.Linear(256, 256, bias=False)  # 256 KiB
    simgpu.cluster(gpus_per_node=1, memory=3 * 2**18)
    model.to("simgpu:0")
    model.weight.grad = torch.ones(256, 256, device="simgpu:0")
    with pytest.raises(torch.OutOfMemoryError):
        torch.optim.Adam(model.parameters()).step()
    gc.collect()
    assert torch.simgpu.memory_allocated(0) == 2 * 2**18
    fresh = torch.ones(16, device="simgpu:0", requires_grad=True) * 2
    with simgpu.profile() as prof:
        held = prof.memory_at_peak(0)
    assert held["activations"] > 0, "the optimizer's step is over"
    del fresh


def test_when_one_replica_runs_out_of_memory_its_error_is_raised_and_the_next_batch_works():
    simgpu.cluster(gpus_per_node=3, memory=2 * MIB)
    model = nn.DataParallel(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 8)).to("simgpu:0"))
    with pytest.raises(torch.OutOfMemoryError, match="GPU"):
        model(torch.ones(3000, 64))
    gc.collect()
    model(torch.ones(30, 64)).sum().backward()
    assert model.module[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("numbers", [True, False])
def test_resize_in_place_keeps_the_memory_of_a_smaller_shape_and_takes_more_for_a_larger_one(numbers):
    with simgpu.cluster(gpus_per_node=1, numbers=numbers):
        x = torch.ones(256, device="simgpu:0")
        view = x
        x.resize_(2, 64)
        assert (tuple(x.shape), allocated()) == ((2, 64), [1024])
        x.resize_(2, 1024).add_(1)
        assert view is x and x.stride() == (1024, 1)
        assert allocated() == [8192]
        if numbers:
            assert x[0, :128].tolist() == [2.0] * 128


def test_the_caching_allocator_reserves_segments_and_cuts_them_into_blocks():
    allocator = CachingAllocator()
    allocator.take("a", 512, "main")
    allocator.take("b", 1024, "main")
    assert allocator.reserved == 2 * MIB  # one small segment for both
    allocator.take("c", 1024, "side")
    assert allocator.reserved == 4 * MIB  # another stream gets its own
    allocator.take("d", 3 * MIB, "main")
    allocator.take("e", 4 * MIB, "main")
    assert allocator.reserved == 24 * MIB  # below 10 MiB: cut from 20
    allocator.take("f", 11 * MIB + 512, "main")
    assert allocator.reserved == 24 * MIB  # it fits beside them: 13 MiB are left
    allocator.take("g", 11 * MIB + 512, "main")
    assert allocator.reserved == 36 * MIB  # a segment of its own, in whole 2 MiB
    for key in "de":
        allocator.give_back(key)
    allocator.take("h", 7 * MIB, "main")  # two neighbours have become one block
    assert allocator.reserved == allocator.peak == 36 * MIB


def test_a_profile_says_what_would_be_reserved():
    with simgpu.cluster(gpus_per_node=1, numbers=False) as cluster:
        before = torch.empty(2 * MIB, dtype=torch.uint8, device="simgpu:0")
        side = torch.simgpu.Stream()
        with simgpu.profile() as prof:
            x = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
            del x
            with torch.simgpu.stream(side):
                y = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
            y.untyped_storage().resize_(0)
            z = torch.empty(25 * MIB, dtype=torch.uint8, device="simgpu:0")
        assert prof.peak_memory(0) == 32 * MIB
        assert prof.peak_reserved(0) == (20 + 30 + 30) * MIB
        assert cluster.gpus[0].memory.allocated == before.nbytes + z.nbytes


@pytest.mark.parametrize(
    ("told", "waits", "reserved"), [(False, False, 30), (True, False, 60), (True, True, 30), ("its own", False, 30)]
)
def test_what_another_stream_uses_is_not_free_at_once(told, waits, reserved):
    """30 MiB, read and written in 63 µs by a stream beside the one that it was taken for; a launch takes 10 µs."""
    with simgpu.cluster(gpus_per_node=1, gpu="toy", numbers=False):
        side = torch.simgpu.Stream()
        with simgpu.profile() as prof:
            x = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
            with torch.simgpu.stream(side):
                x.add_(1)
            if told:
                x.record_stream(torch.simgpu.current_stream() if told == "its own" else side)
            del x  # at 10 µs; the stream beside is done at 73 µs
            for _ in range(7 if waits else 6):  # the last one is launched at 70, or 80
                torch.empty(1, device="simgpu:0").zero_()
            again = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
        assert prof.peak_memory(0) == 30 * MIB  # allocated are as many as ever
        assert prof.peak_reserved(0) == reserved * MIB + 2 * MIB  # and two for the small ones
        assert again.nbytes == 30 * MIB


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
