"""simgpu.one_of: one process stands for one of many ranks, with the time and the memory that it has among them."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from simgpu_ranks import communication, join
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import simgpu
from utils.ranks import World


def steps(device, kind):
    """Two training steps: simulated seconds, peak, and what was sent, of the second."""
    with device:
        net = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(3)])
    if kind == "ddp":
        net = DistributedDataParallel(net)
    else:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in net:
            fully_shard(block, mp_policy=policy)
        fully_shard(net, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.ones(2048, 1024, device=device)
    for _ in range(2):
        torch.simgpu.synchronize()
        with simgpu.profile() as prof:
            optimizer.zero_grad()
            net(x).float().sum().backward()
            optimizer.step()
    return prof.elapsed, prof.peak_memory(device.index), communication(prof)


def among_others(kind, nodes):
    return steps(join(numbers=False, nodes=nodes), kind)


LARGE = [pytest.param(16, 2, marks=pytest.mark.nightly), pytest.param(64, 8, marks=pytest.mark.nightly)]


@pytest.mark.parametrize(("ranks", "nodes"), [(8, 2), *LARGE])
def test_one_of_many_is_as_fast_and_as_full_as_with_the_others_there(ranks, nodes):
    with World(ranks, backend="gloo", timeout=600) as world:
        for kind in ("ddp", "fsdp"):
            together = world.run(among_others, kind, nodes)
            assert all(one[:2] == together[0][:2] for one in together)
            with simgpu.one_of(ranks, nodes=nodes) as cluster:
                alone = steps(torch.device("simgpu", cluster.local_rank), kind)
                assert dist.get_world_size() == ranks
            assert alone[0] == pytest.approx(together[0][0], rel=1e-9)
            assert alone[1] == together[0][1]
            assert alone[2] == together[0][2]


def test_more_gpus_take_longer_for_the_same_step_and_hold_less_of_the_model_each():
    found = {}
    for ranks, kind in ((8, "ddp"), (16_384, "ddp"), (8, "fsdp"), (64, "fsdp")):
        with simgpu.one_of(ranks) as cluster:
            found[ranks, kind] = steps(torch.device("simgpu", cluster.local_rank), kind)
            assert cluster.world_nodes == ranks // 8
        assert not dist.is_initialized()
    assert found[8, "ddp"][0] < found[16_384, "ddp"][0]
    assert found[8, "ddp"][1] == found[16_384, "ddp"][1]
    assert found[8, "fsdp"][0] < found[64, "fsdp"][0]
    assert found[8, "fsdp"][1] > found[64, "fsdp"][1]


def test_what_a_communication_hook_does_afterwards_does_not_hold_up_the_backward_pass():
    ends, computed = {}, {}
    for hook in allreduce_hook, fp16_compress_hook:
        with simgpu.one_of(8, nodes=8, network="Ethernet 25") as cluster:
            device = torch.device("simgpu", cluster.local_rank)
            with device:
                net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)])
            ddp = DistributedDataParallel(net, gradient_as_bucket_view=True, bucket_cap_mb=30)
            ddp.register_comm_hook(None, hook)
            for _ in range(2):
                ddp.zero_grad(set_to_none=False)
                torch.simgpu.synchronize()
                with simgpu.profile() as prof:
                    ddp(torch.ones(16384, 2048, device=device)).sum().backward()
            sent = [event.nbytes for event in prof.events if event.name == "all-reduce"]
            ends[hook] = prof.elapsed, sum(sent)
            computed[hook] = max(event.end for event in prof.events if event.name == "mm")
            # The first bucket comes back while the backward pass still runs.
            assert min(event.end for event in prof.events if event.name == "all-reduce") < computed[hook]
    (slow, whole), (fast, half) = ends.values()
    assert half == whole / 2 and fast < slow
    assert computed[fp16_compress_hook] == pytest.approx(computed[allreduce_hook], rel=0.02)


def test_what_a_collective_has_written_is_freed_when_nobody_holds_it_waited_for_or_not():
    with simgpu.one_of(8) as cluster:
        device, held = torch.device("simgpu", cluster.local_rank), torch.simgpu.memory_allocated
        x = torch.empty(1 << 20, device=device)
        before = held()
        for waits in (False, True):
            for issue in (
                lambda: functional.all_reduce(x, "sum", dist.group.WORLD),
                lambda: functional.all_gather_single(x, 0, dist.group.WORLD),
                lambda: functional.all_to_all_single(x, None, None, dist.group.WORLD),
            ):
                output = issue()
                assert held() > before
                if waits:
                    functional.wait_tensor(output)
                del output
                assert held() == before
            work = dist.all_reduce(torch.empty(1 << 20, device=device), async_op=True)
            if waits:
                work.wait()
            del work
            assert held() == before
        work = dist.all_reduce(x, async_op=True)
        assert work.result()[0] is x and work.get_future().value()[0] is x


WIDTH, ROWS, HIDDEN = 1024, 512, 4096

FLOAT = 4


@pytest.mark.parametrize("layers", [1, 4])
def test_a_tensor_parallel_step_holds_what_it_needs_and_no_more_with_every_step(layers):
    ranks = 8
    with simgpu.one_of(ranks) as cluster:
        device = torch.device("simgpu", cluster.local_rank)
        mesh = init_device_mesh("simgpu", (ranks,))
        with device:
            blocks = [
                nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(layers)
            ]
        net = nn.Sequential(*blocks)
        for block in blocks:
            parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        parameters = 2 * WIDTH * HIDDEN // ranks + HIDDEN // ranks + WIDTH
        x = torch.empty(ROWS, WIDTH, device=device)
        held = []
        for _ in range(3):
            output = net(x)
            kept = ROWS * (2 * HIDDEN // ranks + WIDTH)  # hidden before and after GELU, and what the next block gets
            need = FLOAT * (layers * (parameters + kept) + ROWS * WIDTH)
            assert torch.simgpu.memory_allocated() == need
            output.sum().backward()
            del output
            net.zero_grad()
            held.append(torch.simgpu.memory_allocated())
        assert held == [FLOAT * (layers * parameters + ROWS * WIDTH)] * 3


def test_a_dtensor_does_not_meet_the_groups_of_an_earlier_world():
    def summed(*sizes):
        with simgpu.one_of(8):
            mesh = init_device_mesh("simgpu", sizes, mesh_dim_names=("replicate", "shard", "tensor")[-len(sizes) :])
            layer = parallelize_module(nn.Linear(8, 8, device="simgpu"), mesh["tensor"], RowwiseParallel())
            with simgpu.profile() as prof:
                layer(torch.ones(4, 4, device="simgpu"))
        return communication(prof)

    assert summed(4, 2) == summed(2, 2, 2)  # "tensor" is the same two ranks, and another group


def test_groups_of_a_mesh_share_the_network_cards_of_their_nodes():
    def seconds(sizes, nics):
        with simgpu.one_of(16, nics_per_node=nics):
            mesh = init_device_mesh("simgpu", sizes, mesh_dim_names=("shard", "tensor"))
            x = torch.zeros(2**28, device="simgpu")
            with simgpu.profile() as prof:
                dist.all_reduce(x, group=mesh["shard"].get_group())
        return prof.elapsed

    own = seconds((2, 8), 8)  # eight pairs of GPUs, each with a card of its own on either node
    assert 7.5 < seconds((2, 8), 1) / own < 8.1


def test_what_another_rank_would_have_said_is_refused_in_a_sentence():
    with simgpu.one_of(64, rank=5) as cluster:
        device = torch.device("simgpu", cluster.local_rank)
        box, sizes = [{"seed": 1}], torch.empty(1, dtype=torch.long, device=device)
        heard = torch.empty(1, dtype=torch.long, device=device)
        dist.broadcast(sizes, 3)
        dist.recv(heard, 4)
        calls = (
            lambda: dist.broadcast_object_list(box, src=3),
            lambda: dist.scatter_object_list([None], None, src=0),
            lambda: dist.recv_object_list([None], src=4),
            sizes.item,
            heard.tolist,
        )
        for call in calls:
            with pytest.raises((NotImplementedError, RuntimeError), match="one alone does not know what they send"):
                call()
        agreed = torch.tensor(7, device=device)
        dist.broadcast(agreed, 3)
        dist.broadcast_object_list(box, src=5)
        assert agreed.item() == 7 and box == [{"seed": 1}]


def test_one_of_is_refused_where_there_is_a_process_group():
    with simgpu.one_of(8), pytest.raises(RuntimeError, match="here is one already"), simgpu.one_of(8):
        pass
    assert "RANK" not in os.environ and not dist.is_initialized()
