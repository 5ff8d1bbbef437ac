"""Ranks and GPUs: which backend a world gets (decided everywhere), and NCCL itself (where there are GPUs)."""

from __future__ import annotations

import os

import pytest
import torch
from real_gpus import GPUS, needs_gpus

from utils.hardware.nvml import UsableGpus
from utils.ranks import BadRequest, RankError, RankTimeout, World, groups


def pretend_gpus(monkeypatch, count, note=""):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(groups, "count_gpus", lambda: UsableGpus(count, note))


@pytest.mark.parametrize(
    ("asked", "gpus", "ranks", "backend"),
    [
        ("auto", 0, 4, "gloo"),
        ("auto", 1, 1, "nccl"),
        ("auto", 4, 4, "nccl"),
        ("auto", 8, 4, "nccl"),
        ("gloo", 8, 4, "gloo"),
        ("nccl", 4, 4, "nccl"),
    ],
)
def test_a_world_gets_nccl_if_there_is_a_gpu_for_every_rank(monkeypatch, asked, gpus, ranks, backend):
    pretend_gpus(monkeypatch, gpus)
    assert groups.choose_backend(asked, ranks) == (backend, "")


def test_more_ranks_than_gpus_fall_back_to_the_cpu_and_say_so(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    backend, note = groups.choose_backend("auto", 4)
    assert backend == "gloo"
    assert note == (
        "4 ranks run on the CPU with gloo: NCCL needs a GPU for each rank, this machine has 2 GPUs that torch can use."
    )


def test_a_gpu_that_cannot_be_used_is_named(monkeypatch):
    pretend_gpus(monkeypatch, 0, "There seems to be a GPU (/dev/nvidia0).")
    assert groups.choose_backend("auto", 2) == ("gloo", "There seems to be a GPU (/dev/nvidia0).")
    with pytest.raises(BadRequest, match=r"NCCL works on GPUs only.*There seems to be a GPU"):
        groups.choose_backend("nccl", 2)


@pytest.mark.parametrize(("gpus", "says"), [(0, "NCCL works on GPUs only"), (1, "at most 1 rank")])
def test_nccl_without_enough_gpus_is_refused_with_the_reason(monkeypatch, gpus, says):
    pretend_gpus(monkeypatch, gpus)
    with pytest.raises(BadRequest, match=f"{says}.*"):
        groups.choose_backend("nccl", 4)


def test_a_rank_on_the_cpu_sees_no_gpu(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert groups.take_device("gloo", 3, 4) == torch.device("cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.skipif(GPUS > 0, reason="for machines without a GPU")
def test_asking_for_nccl_inside_a_cell_on_the_cpu_is_a_sentence():
    with World(2) as world, pytest.raises(RankError, match=r"These ranks are on the CPU.*'gloo'"):
        world.run_cell("dist.init_process_group('nccl')")


@needs_gpus(1)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_one_rank_on_one_gpu_reduces_with_nccl(start):
    with World(1, start=start) as world:
        assert (world.backend, world.devices) == ("nccl", ["cuda:0"])
        source = "x = torch.ones(3, device=device)\ndist.all_reduce(x)\n(dist.get_backend(), x.device.type, x.tolist())"
        assert world.run_cell(source) == {0: "('cpu:gloo,cuda:nccl', 'cuda', [1.0, 1.0, 1.0])"}
        (pulled,) = world.pull("x")
        assert pulled.device.type == "cpu"


@needs_gpus(1)
def test_a_cell_written_for_the_cpu_runs_with_a_gpu():
    with World(1) as world:
        source = (
            "x = torch.tensor([rank + 1]); dist.all_reduce(x); objects = [None]; dist.all_gather_object(objects, 7)"
        )
        assert world.run_cell(f"{source}\n(x.item(), objects)") == {0: "(1, [7])"}


def test_a_group_with_gpus_communicates_tensors_of_the_cpu_too(tmp_path):
    """NCCL needs GPUs, so gloo stands in for it here; the CPU's side is the same."""
    assert groups.GROUP_BACKENDS["nccl"] == "cpu:gloo,cuda:nccl"
    make = (
        "from utils.ranks import groups\ngroups.GROUP_BACKENDS['nccl'] = 'cpu:gloo,cuda:gloo'\n"
        "dist.destroy_process_group()\n"
        f"group = groups.Group('{tmp_path}/store', 'nccl', rank, 2, torch.device('cpu'))\n"
        "group.make(0)\nx = torch.tensor([rank + 1]); dist.all_reduce(x); dist.barrier()\n"
        "pair = dist.new_group([0, 1]); y = torch.ones(1); dist.all_reduce(y, group=pair)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "(dist.get_backend(), x.item(), y.item())"
    )
    with World(2, backend="gloo") as world:
        assert world.run_cell(make) == dict.fromkeys((0, 1), "('cpu:gloo,cuda:gloo', 3, 2.0)")


@needs_gpus(1)
def test_a_forked_rank_can_use_cuda_and_the_zygote_has_not_touched_it():
    with World(1) as world:
        assert world.run_cell("(torch.randn(64, 64, device='cuda') @ torch.randn(64, 64, device='cuda')).shape[0]")
    with World(1) as world:  # forked after CUDA was used in a rank before
        assert world.run_cell("torch.zeros(1, device='cuda').item()") == {0: "0.0"}


@needs_gpus(1)
def test_a_failure_on_a_gpu_keeps_variables_and_the_group_works_again():
    with World(1) as world:
        world.run_cell("kept = torch.full((2,), 3.0, device=device)")
        with pytest.raises(RankError, match="boom"):
            world.run_cell("raise ValueError('boom')")
        assert world.run_cell("dist.all_reduce(kept)\nkept.tolist()") == {0: "[3.0, 3.0]"}


@needs_gpus(1)
def test_more_ranks_than_gpus_shard_on_the_cpu():
    source = (
        "from torch.distributed.fsdp import fully_shard\nmodel = fully_shard(torch.nn.Linear(8, 4))\n"
        "model(torch.ones(2, 8)).sum().backward()\n"
        "(torch.cuda.is_available(), model.weight.device_mesh.device_type, model.weight.grad.to_local().device.type)"
    )
    with World(GPUS + 1) as world:
        assert world.run_cell(source)[GPUS] == "(False, 'cpu', 'cpu')"


@needs_gpus(1)
def test_more_ranks_than_this_machine_has_gpus():
    with World(GPUS + 1) as world:
        assert world.backend == "gloo"
        assert "NCCL needs a GPU for each rank" in world.note
    with pytest.raises(BadRequest, match=r"NCCL needs a GPU for each rank.*--backend gloo"):
        World(GPUS + 1, backend="nccl")


TRAIN = """
torch.manual_seed(0)
model = torch.nn.Linear(8, 1).to(device)
replica = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(4 * world_size, 8, generator=torch.Generator().manual_seed(1))
for _ in range(3):
    optimizer.zero_grad()
    replica(rows[4 * rank :][:4].to(device)).square().mean().backward()
    optimizer.step()
seen = torch.tensor([rank + 1]); dist.all_reduce(seen)
"""


ON_EVERY_GPU = (pytest.mark.gpu, pytest.mark.skipif(GPUS < 1, reason="needs a real GPU"))


@pytest.mark.parametrize("size", [2, pytest.param(GPUS, marks=ON_EVERY_GPU, id="every GPU")])
def test_training_on_as_many_ranks_as_gpus_is_training_in_one_process(size):
    with World(size) as world:
        world.run_cell(TRAIN)
        models, seen = world["model"], world["seen"]
    torch.manual_seed(0)
    alone = torch.nn.Linear(8, 1)
    rows = torch.randn(4 * size, 8, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        alone(rows).square().mean().backward()
        optimizer.step()
    for model in models:
        torch.testing.assert_close(list(model.parameters()), list(alone.parameters()), rtol=1e-4, atol=1e-5)
    assert [each.item() for each in seen] == [size * (size + 1) // 2] * size


@needs_gpus(2)
def test_a_hang_under_nccl_ends_with_the_table_and_the_group_works_again():
    with World(2) as world:
        world.run_cell("kept = rank")
        source = "x = torch.ones(1, device=device)\nif rank == 0:\n    dist.all_reduce(x); torch.cuda.synchronize()"
        with pytest.raises(RankTimeout):
            world.run_cell(source, timeout=5)
        source = "x = torch.ones(1, device=device); dist.all_reduce(x); (kept, x.item())"
        assert world.run_cell(source) == {0: "(0, 2.0)", 1: "(1, 2.0)"}
