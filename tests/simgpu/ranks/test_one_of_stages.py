"""simgpu.one_of(N, stages=p): one process for each stage of a pipeline has the time and the memory of all its ranks."""

import os

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import communication, join
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import simgpu
from utils.ranks import World

WIDTH, ROWS = 256, 128


def block():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def step(device, shape, name):
    """A program for a mesh (pipeline, data, tensor), as one writes it for GPUs: its second step."""
    mesh = init_device_mesh("simgpu", shape, mesh_dim_names=("pp", "dp", "tp"))
    stages, here = shape[0], mesh.get_local_rank("pp")
    chunks = 2 if name == "Interleaved1F1B" else 1
    parts, made = [], []
    inside = torch.empty(ROWS, WIDTH, device="meta", requires_grad=True)
    for index in range(here, stages * chunks, stages):
        with device:
            part = nn.Sequential(*[block() for _ in range(1 + (index == 0))])  # the first stage is slower
        for each in part:
            parallelize_module(each, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            fully_shard(each, mesh=mesh["dp"])
        fully_shard(part, mesh=mesh["dp"])
        parts.append(part)
        ends = {"input_args": inside, "output_args": inside}
        made.append(PipelineStage(part, index, stages * chunks, device, group=mesh.get_group("pp"), **ends))
    kind = schedules.get_schedule_class(name)
    schedule = kind(made if chunks > 1 else made[0], 2 * stages, loss_fn=lambda y, _: y.square().mean())
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], foreach=False)
    x = torch.zeros(2 * stages * ROWS, WIDTH, device=device)
    given = (x,) if here == 0 else ()
    target = {"target": x} if here == stages - 1 else {}
    for _ in range(2):
        dist.barrier()
        with simgpu.profile() as prof:
            optimizer.zero_grad()
            schedule.step(*given, **target, return_outputs=False)
            norm = x.sum()
            dist.all_reduce(norm)  # of gradients: over all stages, data and tensor
            optimizer.step()
    return prof.elapsed, prof.busy(device.index), prof.peak_memory(device.index), communication(prof)


def among_all(shape, name, nodes):
    return step(join(numbers=False, nodes=nodes), shape, name)


def for_stages(shape, name, nodes):
    before = dict(os.environ)
    with simgpu.one_of(shape[0] * shape[1] * shape[2], nodes=nodes, stages=shape[0]) as cluster:
        assert int(os.environ["RANK"]) == dist.get_rank() == cluster.rank
        found = step(torch.device("simgpu", int(os.environ["LOCAL_RANK"])), shape, name)
    assert os.environ["RANK"] == before["RANK"] and dist.get_world_size() == shape[0]
    return found


@pytest.mark.parametrize(("shape", "nodes"), [((2, 2, 2), 1), pytest.param((4, 2, 2), 2, marks=pytest.mark.nightly)])
def test_a_process_for_each_stage_is_as_fast_and_as_full_as_all_ranks(shape, nodes):
    each = shape[1] * shape[2]
    found = {}
    names = "1F1B", "Interleaved1F1B"
    for run, ranks in (among_all, shape[0] * each), (for_stages, shape[0]):
        with World(ranks, backend="gloo", timeout=300) as world:
            found[run] = [world.run(run, shape, name, nodes) for name in names]
    for together, alone in zip(found[among_all], found[for_stages], strict=True):
        for stage, (elapsed, busy, peak, sent) in enumerate(alone):
            for there in together[stage * each : (stage + 1) * each]:
                assert (elapsed, busy) == pytest.approx(there[:2], rel=1e-9)
                assert peak == there[2]
            assert sent == together[stage * each][3] and len(sent) > 20
        assert len({busy for _, busy, *_ in alone}) > 1


def across_stages():
    """In the world, which has a process for each stage and more members."""
    with simgpu.one_of(64, stages=2) as cluster:
        device, each = torch.device("simgpu", cluster.local_rank), 32
        stage = cluster.rank // each
        for op, expected in (dist.ReduceOp.SUM, each * (3 + 4)), (dist.ReduceOp.MAX, 4), (dist.ReduceOp.MIN, 3):
            said = torch.tensor([3 + stage], device=device)
            dist.all_reduce(said, op)
            assert said.item() == expected
        heard = torch.tensor([7 + stage], device=device)
        dist.broadcast(heard, each)
        assert heard.item() == 8
        whole = torch.empty(64, dtype=torch.long, device=device)
        dist.all_gather_single(whole, heard + stage)
        assert whole.tolist() == [8] * each + [9] * each
        if stage == 0:
            x = torch.ones(16384, 16384, device=device)
            x @ x
            dist.send(whole, each)
        else:
            dist.recv(whole, 0)
            assert whole.tolist()[0] == 8 and cluster.now() > 0.01  # it has waited for the product
        for ranks, words in (([0, 1, 32], "same places"), ([0, 33], "same places")):
            if cluster.rank in ranks:
                with pytest.raises(NotImplementedError, match=words):
                    cluster.processes_among(ranks)
        with pytest.raises(NotImplementedError, match="no process here"):
            dist.send(whole, 33 if stage == 0 else 1)
        with pytest.raises(NotImplementedError, match="objects from all stages: start the other ranks"):
            dist.all_gather_object([None] * 64, stage)
        inside = dist.new_group(list(range(stage * each, stage * each + 8)), use_local_synchronization=True)
        found = [None] * 8
        dist.all_gather_object(found, stage, group=inside)
        assert found == [stage] * 8


def wrongly(stages, ranks):
    with simgpu.one_of(ranks, stages=stages):
        pass


def test_in_the_world_the_processes_meet_and_each_stands_for_its_stage():
    with World(2, backend="gloo", timeout=200) as world:
        world.run(across_stages)
        for stages, ranks in ((4, 64), (2, 63), (0, 64)):
            with pytest.raises(Exception, match=f"needs a process for each stage .start {stages} with torchrun"):
                world.run(wrongly, stages, ranks)
    with pytest.raises(ValueError, match="here are none"):
        wrongly(2, 64)


class Counted(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_parameter_is_cut_for_16_384_ranks_with_as_many_operators_as_for_512():
    count, seconds = {}, {}
    for ranks in 512, 16_384:
        with simgpu.one_of(ranks) as cluster, torch.device("simgpu", cluster.local_rank):
            net = block()
            with Counted() as counted:
                fully_shard(net)
            count[ranks] = counted.count
            for _ in range(2):
                with simgpu.profile() as prof:
                    net(torch.ones(ROWS, WIDTH)).sum().backward()
            seconds[ranks] = prof.elapsed
            assert sum(event.name == "all-gather" for event in prof.events) == 1
    assert count[16_384] <= count[512] + 8 and seconds[512] < seconds[16_384]
