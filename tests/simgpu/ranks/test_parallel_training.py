"""torch's own parallel training on simulated GPUs of ranks gives what one process gives; shapes alone run too."""

import copy

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import communication, join
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import simgpu
from utils.ranks import World

RANKS = 4


class Block(nn.Module):
    """Norm, up, down, and the way around."""

    def __init__(self, width: int = 16, recompute: bool = False) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.recompute = recompute

    def inner(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))

    def forward(self, x):
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x))


def model(recompute=False):
    torch.manual_seed(0)
    return nn.Sequential(*[Block(recompute=recompute) for _ in range(3)], nn.Linear(16, 4))


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def train(net, device, shares, share, numbers=True, clip=0.5, steps=3, passes=1):
    """A few steps on this rank's share of a batch, beside one process with all of it: the greatest difference."""
    alone = model()
    torch.manual_seed(1)
    x, y = torch.randn(8 * shares, 6, 16), torch.randn(8 * shares, 6, 4)
    mine = slice(8 * share, 8 * share + 8)
    pairs = []
    for each, inputs, targets in ((net, x[mine].to(device), y[mine].to(device)), (alone, x, y)):
        optimizer = torch.optim.SGD(each.parameters(), 0.1, momentum=0.9, foreach=False)
        for _ in range(steps if each is net or numbers else 0):
            optimizer.zero_grad()
            nn.functional.mse_loss(each(inputs), targets).backward()
            if clip:
                nn.utils.clip_grad_norm_(each.parameters(), clip, foreach=False)
            optimizer.step()
        pairs.append([whole(parameter) for parameter in each.parameters()])
    if not numbers:
        return [tuple(parameter.shape) for parameter in pairs[0]] == [tuple(p.shape) for p in pairs[1]]
    return max((a.cpu() - b).abs().max().item() for a, b in zip(*pairs, strict=True))


DDP_OPTIONS = {
    "plain": {},
    "small buckets": {"bucket_cap_mb": 0.01},
    "bucket views": {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
}


def data_parallel(options, numbers=True):
    device = join(numbers)
    net = DistributedDataParallel(model().to(device), **options)
    return train(net, device, dist.get_world_size(), dist.get_rank(), numbers)


@pytest.mark.parametrize("options", DDP_OPTIONS.values(), ids=DDP_OPTIONS)
def test_distributed_data_parallel_is_one_process_with_the_whole_batch(world, options):
    assert max(world.run(data_parallel, options)) < 1e-6
    assert all(world.run(data_parallel, options, numbers=False))


def accumulating():
    device = join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, alone = DistributedDataParallel(model().to(device)), model()
    torch.manual_seed(1)
    x = torch.randn(2, ranks, 5, 16)
    with simgpu.profile() as prof:
        with net.no_sync():
            net(x[0, rank].to(device)).sum().backward()
        quiet = len(communication(prof))
        net(x[1, rank].to(device)).sum().backward()
    (alone(x).sum() / ranks).backward()
    worst = max((p.grad.cpu() - q.grad).abs().max() for p, q in zip(net.parameters(), alone.parameters(), strict=True))
    return quiet, len(communication(prof)), worst.item()


def test_no_sync_sends_nothing_until_the_last_backward(world):
    for quiet, sent, worst in world.run(accumulating):
        assert quiet == 0
        assert sent == 1
        assert worst < 1e-4  # of gradients up to 100


def hooked():
    device = join()
    net = DistributedDataParallel(model().to(device), bucket_cap_mb=0.01)
    seen = []

    def halve(_state, bucket):
        seen.append(bucket.buffer().nbytes)
        future = dist.all_reduce(bucket.buffer().div_(2 * dist.get_world_size()), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    net.register_comm_hook(None, halve)
    net(torch.ones(2, 16, device=device)).sum().backward()  # all in one bucket, the first time
    net.zero_grad()
    net(torch.ones(2, 16, device=device))  # makes the buckets
    seen.clear()
    with simgpu.profile() as prof:
        net(torch.ones(2, 16, device=device)).sum().backward()
    alone = model()
    alone(torch.ones(2, 16)).sum().backward()
    same = [torch.allclose(p.grad.cpu(), q.grad / 2) for p, q in zip(net.parameters(), alone.parameters(), strict=True)]
    return len(seen), len(communication(prof)), all(same)


def test_a_communication_hook_takes_the_place_of_the_all_reduce(world):
    for hooks, sent, same in world.run(hooked):
        assert hooks == sent > 1
        assert same


def overlapping(cap_mb):
    device = join(numbers=False)
    with device:
        net = DistributedDataParallel(nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(6)]), bucket_cap_mb=cap_mb)
    x = torch.ones(1024 * (1 + (dist.get_rank() == 2)), 4096, device=device)
    for _ in range(3):
        dist.barrier()  # ranks may end a few copies later than others, which ran beside the last bucket
        with simgpu.profile() as prof:
            net(x).sum().backward()
    backward = [event for event in prof.events if event.phase == "backward" and event.name == "mm"]
    return communication(prof), backward[-1].end * 1e6, prof.elapsed


def test_buckets_overlap_with_backward_and_wait_for_the_straggler(world):
    one, many = world.run(overlapping, 1000), world.run(overlapping, 25)
    for ranks, buckets in ((one, 1), (many, 6)):
        assert all(events == ranks[0][0] for events, *_ in ranks)  # the same collectives at the same times on all ranks
        assert len(ranks[0][0]) == buckets
    straggler_ends = one[2][1]
    assert one[0][0][0][1] >= straggler_ends > one[0][1]
    assert [start < straggler_ends for _, start, _ in many[0][0]] == [True] * 5 + [False]
    assert many[0][2] < one[0][2]


FSDP_OPTIONS = {
    "reshard": {},
    "keep gathered": {"reshard_after_forward": False},
    "two nodes, HSDP": {"mesh": (2, 2)},
    "CPU offload": {"offload_policy": True},
}


def sharded(options, numbers=True, recompute=False):
    device = join(numbers, nodes=2 if "mesh" in options else 1)
    options = dict(options)
    if "mesh" in options:
        options["mesh"] = init_device_mesh("simgpu", options["mesh"], mesh_dim_names=("replicate", "shard"))
    if "offload_policy" in options:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    net = model(recompute)
    for block in list(net)[:3]:
        fully_shard(block, **options)
    fully_shard(net, **options)
    clip = 0 if "offload_policy" in options else 0.5
    shares = dist.get_world_size()
    difference = train(net, device, shares, dist.get_rank(), numbers, clip) if clip else offloaded(net, device)
    return difference, [tuple(p.to_local().shape) for p in net.parameters()][:2]


def offloaded(net, device):
    alone = model()
    x = torch.ones(2, 16)
    for each, inputs in ((net, x.to(device)), (alone, x)):
        optimizer = torch.optim.SGD(each.parameters(), 0.1, foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            each(inputs).sum().backward()
            optimizer.step()
    shards = [p.to_local() for p in net.parameters()]
    assert all(shard.device.type == "cpu" for shard in shards)
    kept = [p.chunk(RANKS)[dist.get_rank()] for p in alone.parameters()]
    return max((a - b).abs().max().item() for a, b in zip(shards, kept, strict=True))


@pytest.mark.parametrize("options", FSDP_OPTIONS.values(), ids=FSDP_OPTIONS)
def test_fsdp2_is_one_process_with_the_whole_batch(world, options):
    split = 2 if "mesh" in options else RANKS
    for difference, shapes in world.run(sharded, options):
        assert difference < 1e-6
        assert shapes == [(16 // split,)] * 2
    if "offload_policy" not in options:
        assert all(same for same, _ in world.run(sharded, options, numbers=False))


def test_fsdp2_with_activation_checkpointing(world):
    assert max(difference for difference, _ in world.run(sharded, {}, recompute=True)) < 1e-6
    assert all(same for same, _ in world.run(sharded, {}, numbers=False, recompute=True))


def in_bf16():
    device = join()
    net, alone = model(), copy.deepcopy(model()).bfloat16()
    fully_shard(net, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    out = net(x.to(device))
    out.float().sum().backward()
    expected = alone(x.bfloat16())
    return out.dtype, (out.cpu() - expected).abs().max().item(), next(net.parameters()).grad.dtype


def test_fsdp2_with_mixed_precision_computes_in_bf16_and_reduces_in_fp32(world):
    for dtype, difference, gradient in world.run(in_bf16):
        assert (dtype, gradient) == (torch.bfloat16, torch.float32)
        assert difference < 0.05  # bf16 has 8 bits; not all of a matrix product's sums are in the same order


def many_parameters(way):
    device = join()
    torch.manual_seed(0)
    alone = nn.Sequential(*[Block() for _ in range(6)])
    net = fully_shard(copy.deepcopy(alone))
    asked = []
    plain = ShardingPropagator._propagate_tensor_meta_non_cached

    def counted(self, schema):
        if way in schema.op.name():
            asked.append(max(len(arg) for arg in schema.args_schema if isinstance(arg, (list, tuple))))
        return plain(self, schema)

    ShardingPropagator._propagate_tensor_meta_non_cached = counted
    for each, x in ((net, torch.ones(2, 16, device=device)), (alone, torch.ones(2, 16))):
        optimizer = torch.optim.AdamW(each.parameters(), 0.01, **{way: True})
        for _ in range(2):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            optimizer.step()
    ShardingPropagator._propagate_tensor_meta_non_cached = plain
    pairs = zip(net.parameters(), alone.parameters(), strict=True)
    return max((whole(a).cpu() - b).abs().max().item() for a, b in pairs), max(asked)


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_an_optimizer_over_many_shards_asks_torch_about_one_of_each_kind(world, way):
    for difference, longest in world.run(many_parameters, way):
        assert difference < 1e-5
        assert longest == 4  # of 36 parameters: widths 16 and 64, and two kinds of matrices


def fused_step():
    device = join()
    net = fully_shard(model())
    net(torch.ones(2, 16, device=device)).sum().backward()
    torch.optim.AdamW(net.parameters(), fused=True).step()


def test_a_new_cluster_on_which_this_rank_has_another_gpu(world):
    """Torch remembers, for operators on DTensors, where tensors of shapes alone come out."""
    world.run(fused_step)
    assert max(difference for difference, _ in world.run(sharded, {"mesh": (2, 2)})) < 1e-6


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def tensor_parallel(kind, numbers=True):
    device = join(numbers)
    net = model().to(device)
    ranks = dist.get_world_size()
    mesh = init_device_mesh("simgpu", (2, ranks // 2), mesh_dim_names=("data", "tensor"))
    if kind == "TP":
        mesh = {"tensor": init_device_mesh("simgpu", (ranks,))}
    for block in list(net)[:3]:
        parallelize_module(block, mesh["tensor"], dict(PLAN))
    if kind == "TP":
        for parameter in [*list(net)[3].parameters(), *(p for b in list(net)[:3] for p in b.norm.parameters())]:
            dist.broadcast(parameter.data, 0)
        return train(net, device, 1, 0, numbers, clip=0)
    for block in list(net)[:3]:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    return train(net, device, 2, mesh["data"].get_local_rank(), numbers, clip=0)


@pytest.mark.parametrize("kind", ["TP", "FSDP2 x TP"])
def test_tensor_parallelism_alone_and_with_fsdp2_is_one_process(world, kind):
    assert max(world.run(tensor_parallel, kind)) < 1e-6
    assert all(world.run(tensor_parallel, kind, numbers=False))


def sequence_parallel():
    device = join()
    net, alone = Block().to(device), Block()
    alone.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()})
    mesh = init_device_mesh("simgpu", (dist.get_world_size(),))
    for tensor in net.state_dict().values():
        dist.broadcast(tensor, 0)
    alone.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()})
    from torch.distributed.tensor import Replicate, Shard

    plan = {
        "norm": SequenceParallel(sequence_dim=1),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(net, mesh, plan)
    parallelize_module(
        net,
        mesh,
        PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=False),
    )
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(3))
    with simgpu.profile() as prof:
        out = net(x.to(device))
        out.sum().backward()
    out = out.full_tensor() if isinstance(out, DTensor) else out
    expected = alone(x)
    expected.sum().backward()
    gradient = net.up.weight.grad.full_tensor().cpu()
    names = [name for name, *_ in communication(prof)]
    return (out.cpu() - expected).abs().max().item(), (gradient - alone.up.weight.grad).abs().max().item(), names


def test_sequence_parallelism_gathers_and_scatters_instead_of_all_reducing(world):
    for difference, gradient, names in world.run(sequence_parallel):
        assert difference < 1e-5
        assert gradient < 1e-4
        assert {"all-gather", "reduce-scatter"} <= set(names)


def counted(kind):
    """A model of one matrix, 1024 × 1024 in fp32: 4 MiB."""
    device = join(numbers=False)
    with device:
        net = nn.Sequential(nn.Linear(1024, 1024, bias=False))
    memory = simgpu.current().own[0].memory
    if kind == "ddp":
        net = DistributedDataParallel(net)
    elif kind == "ddp, bucket views":
        net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    else:
        fully_shard(net)
    before = memory.allocated
    with simgpu.profile() as prof:
        x = torch.ones(256, 1024, device=device)  # 1 MiB
        y = net(x)  # 1 MiB
        forward = memory.allocated
        y.sum().backward()
    del x, y
    return before, forward, memory.allocated, prof.peak_memory(dist.get_rank())


MIB = 2**20

SCALARS = 2 * 512
"""The loss, and the gradient that backward begins with: one block each."""


def test_memory_by_hand_to_the_byte(world):
    ddp, views, fsdp = (world.run(counted, kind) for kind in ("ddp", "ddp, bucket views", "fsdp"))
    for ranks in (ddp, views, fsdp):
        assert len(set(ranks)) == 1
    weight, bucket, gradient, x, y = 4 * MIB, 4 * MIB, 4 * MIB, MIB, MIB
    held, full = weight + bucket, weight + bucket + x + y
    assert ddp[0] == (held, full, held + gradient, full + gradient + SCALARS)
    assert views[0] == (held, full, held, full + gradient + SCALARS)  # the gradient becomes a view of the bucket
    shard, scattered = weight // RANKS, gradient // RANKS  # and buffers of all-gather and reduce-scatter beside them
    full = shard + weight + x + y  # the outermost layer stays gathered until backward
    peak = shard + x + y + gradient + 4 * MIB + scattered + SCALARS  # the gathered weight has been freed by then
    assert fsdp[0] == (shard, full, shard + scattered, peak)


def test_three_ranks_with_uneven_shards_are_one_process():
    with World(3, backend="gloo", timeout=200) as three:
        assert max(difference for difference, _ in three.run(sharded, {})) < 1e-6
        shapes = [shapes for _, shapes in three.run(sharded, {}, numbers=False)]
        assert shapes == [[(6,)] * 2, [(6,)] * 2, [(4,)] * 2]
        assert max(three.run(data_parallel, {})) < 1e-6
        assert all(three.run(data_parallel, {}, numbers=False))


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.nightly)])
def test_two_and_eight_ranks_are_one_process_too(ranks):
    with World(ranks, backend="gloo", timeout=200) as world:
        for options in {}, {"mesh": (2, ranks // 2)}:
            assert max(difference for difference, _ in world.run(sharded, options)) < 1e-6
            assert all(same for same, _ in world.run(sharded, options, numbers=False))
        for kind in "TP", "FSDP2 x TP":
            assert max(world.run(tensor_parallel, kind)) < 1e-6
            assert all(world.run(tensor_parallel, kind, numbers=False))
        for options in {}, DDP_OPTIONS["bucket views"]:
            assert max(world.run(data_parallel, options)) < 1e-6
            assert all(world.run(data_parallel, options, numbers=False))
