"""Faults on ranks with simulated GPUs: the tables and sentences of other ranks, variables kept, nothing left over."""

import psutil
import pytest

from utils.ranks import RankError, RankTimeout, World

DEVICES = {"module": "simgpu.ranks.cells", "gpu": "H100", "network": "", "shapes": False}

LEFT = "finished the cell, without that call or with one that did not fit"

MODEL = """
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(device))
x = torch.ones(2, 4, device=device)
"""


@pytest.fixture(scope="module")
def world():
    with World(4, devices=DEVICES) as world:
        world.run_cell("kept = torch.full((3,), rank + 1.0, device=device)")
        yield world


def fails(world, source, error=RankError, **options):
    with pytest.raises(error) as caught:
        world.run_cell(source, **options)
    return caught.value


def still_works(world):
    """Variables are there, a collective gives the right result, and its time is the same on all ranks."""
    source = """
y = kept.clone()
import simgpu
with simgpu.profile() as prof:
    dist.all_reduce(y)
(kept[0].item(), y[0].item(), [(e.start, e.end) for e in prof.events if e.name == 'all-reduce'])
"""
    values = [eval(value) for value in world.run_cell(source).values()]
    assert [value[:2] for value in values] == [(rank + 1.0, 10.0) for rank in range(4)]
    assert len(values[0][2]) == 1 and all(value[2] == values[0][2] for value in values)
    return True


@pytest.mark.parametrize(
    "call",
    ["dist.barrier()", "dist.all_reduce(kept.clone())", "kept @ kept; dist.broadcast(kept, 3)", "dist.recv(kept, 3)"],
)
def test_a_rank_that_never_arrives_is_named_at_the_time_out(world, call):
    error = fails(world, f"if rank != 3:\n    {call}", RankTimeout, timeout=2)
    name = call.rpartition("dist.")[2].partition("(")[0]
    assert f"ranks 0–2 wait in {name} for rank 3: rank 3 has {LEFT}." in error.report
    assert still_works(world)


@pytest.mark.extras
@pytest.mark.parametrize("devices", [{}, {"devices": DEVICES}], ids=["plain", "simulated"])
def test_groups_made_in_different_orders_end_with_the_line_that_makes_them_as_on_plain_ranks(devices):
    """Which rank stays in that line depends on who leaves its address first."""
    source = """
orders = ([0, 1], [2, 3]), ([2, 3], [0, 1])
for members in orders[rank == 1]:
    group = dist.new_group(members)
    if rank in members:
        dist.all_reduce(torch.ones(3, device=device), group=group)
"""
    with World(4, **devices) as world:
        report = fails(world, source, RankTimeout, timeout=3).report
    assert "group = dist.new_group(members)" in report


def test_groups_used_in_different_orders_end_with_the_table(world):
    world.run_cell("a, b = dist.new_group([0, 1]), dist.new_group([0, 1])")
    source = (
        "if rank < 2:\n    for group in (a, b) if rank else (b, a):\n        dist.all_reduce(kept.clone(), group=group)"
    )
    error = fails(world, source, RankTimeout, timeout=2)
    assert "waiting in all_reduce" in error.report
    assert still_works(world)


def test_an_exception_in_a_hook_is_the_cells_error_and_the_others_are_freed(world):
    world.run_cell(MODEL)
    source = """
def hook(parameter):
    if rank == 2:
        raise ValueError("in a hook")
handle = net.module.weight.register_post_accumulate_grad_hook(hook)
net(x).sum().backward()
dist.barrier()
"""
    error = fails(world, source, timeout=30)
    assert str(error) == "rank 2 failed: ValueError: in a hook"
    assert "ranks 0, 1, 3 were waiting" in error.report
    assert still_works(world)


def test_an_exception_in_a_communication_hook_is_the_cells_error(world):
    world.run_cell(MODEL)
    source = """
def hook(state, bucket):
    if rank == 1:
        raise ValueError("in a communication hook")
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
net.register_comm_hook(None, hook)
net(x).sum().backward()
"""
    error = fails(world, source, timeout=30)
    assert "rank 1 failed: " in str(error) and "in a communication hook" in str(error)
    assert still_works(world)


def test_mismatched_collectives_are_told_in_a_sentence(world):
    error = fails(world, "if rank == 2:\n    dist.barrier()\nelse:\n    dist.all_reduce(kept.clone())", timeout=30)
    assert "ranks 0, 1, 3: all-reduce of 3 float32, SUM; rank 2: barrier" in error.report
    assert still_works(world)


def test_mismatched_sizes_are_told_in_a_sentence(world):
    error = fails(world, "dist.all_reduce(torch.ones(3 + (rank == 1), device=device))", timeout=30)
    assert "ranks 0, 2, 3: all-reduce of 3 float32, SUM; rank 1: all-reduce of 4 float32, SUM" in error.report
    assert still_works(world)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("torch.ones(2, device='cuda')", "torch.device('simgpu', local_rank)"),
        ("net = torch.nn.Linear(2, 2).cuda()", "torch.device('simgpu', local_rank)"),
        ("torch.cuda.set_device(local_rank)", "torch.simgpu for torch.cuda"),
        ("dist.init_process_group('nccl')", "write 'simccl'"),
        ("dist.new_group(pg_options=dist.ProcessGroupNCCL.Options())", "leave pg_options out"),
        ("dist.new_group(pg_options=object())", "leave pg_options out"),
    ],
)
def test_a_program_for_real_gpus_is_told_the_two_names_that_differ(world, source, sentence):
    error = fails(world, source)
    assert sentence in str(error)
    assert len(str(error).splitlines()) == 1
    assert still_works(world)


def test_a_program_for_simulated_gpus_is_told_on_plain_ranks_how_to_have_them():
    with World(2) as plain:
        error = fails(plain, "dist.init_process_group('simccl')")
        assert "begin with %%ranks -n 4 --gpu H100" in str(error)
        assert len(str(error).splitlines()) == 1
        error = fails(plain, "import simgpu\nwith simgpu.profile():\n    pass")
        assert "there is no simulated cluster yet" in str(error)
        assert plain.run_cell("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == {0: "2.0", 1: "2.0"}


def test_one_rank_of_eight_without_memory_is_named_and_the_others_live_on():
    shapes = {**DEVICES, "shapes": True}
    with World(8, devices=shapes) as world:
        world.run_cell("kept = torch.ones(4, device=device)")
        source = (
            "big = [torch.ones(1 << 30, device=device) for _ in range(2 + 30 * (rank == 5))]\ndist.all_reduce(kept)"
        )
        error = fails(world, source, timeout=60)
        assert str(error).startswith(
            "rank 5 failed: OutOfMemoryError: simgpu out of memory. Tried to allocate 4.00 GiB."
        )
        assert "ranks 0–4, 6, 7 were waiting in all_reduce" in error.report
        held = world.run_cell(
            "dist.all_reduce(kept)\n(len(big) if rank != 5 else 0, torch.simgpu.memory_allocated() >> 30)"
        )
        assert [eval(value) for value in held.values()][:5] == [(2, 8)] * 5
        left = [psutil.Process(pid) for pid in world.pids]
    _, alive = psutil.wait_procs(left, timeout=30)
    assert alive == []


@pytest.mark.parametrize("how", ["signal.SIGKILL", "signal.SIGSEGV"])
def test_a_rank_that_dies_is_named_with_its_signal(how):
    with World(2, devices=DEVICES) as world:
        source = (
            f"import os, signal\nif rank: os.kill(os.getpid(), {how})\ndist.all_reduce(torch.ones(2, device=device))"
        )
        left = [psutil.Process(pid) for pid in world.pids]
        error = fails(world, source, timeout=30)
        assert f"rank 1 was killed by {how.partition('.')[2]}" in error.report or how.partition(".")[2] in str(error)
    _, alive = psutil.wait_procs(left, timeout=30)
    assert alive == []
