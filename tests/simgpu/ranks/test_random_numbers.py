"""Random numbers of DTensors: what ranks draw together is what one process draws with the same seed."""

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import join
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, rand
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from utils.ranks import World


def initialise(net):
    net[0].reset_parameters()
    nn.init.normal_(net[1].weight, std=0.02)
    nn.init.trunc_normal_(net[1].bias, std=0.02)
    nn.init.kaiming_uniform_(net[2].weight)
    nn.init.zeros_(net[2].bias)


def make():
    return nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 12), nn.Linear(12, 7))  # (nothing divides by three and four)


def start_from_meta(layout, numbers=True):
    """Is every parameter what one process gives it? And with which differences do the ranks' own ones begin?"""
    device, ranks = join(numbers=numbers), dist.get_world_size()
    if dist.get_rank() == 0:
        torch.randn(5)  # what one rank draws on the CPU does not bring the GPUs apart
    with torch.device("meta"):
        net = make()
    if layout == "TP":
        mesh = init_device_mesh("simgpu", (ranks // 2, 2), mesh_dim_names=("data", "parts"))
        parallelize_module(net, mesh["parts"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(net, mesh=mesh["data"])
    elif layout == "HSDP":
        fully_shard(net, mesh=init_device_mesh("simgpu", (2, ranks // 2), mesh_dim_names=("copies", "shards")))
    else:
        fully_shard(net)
    net.to_empty(device=device)
    for one in (net, alone := make()):
        torch.manual_seed(7)
        initialise(one)
    whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in net.parameters()]
    net(torch.ones(2, 6, device=device)).sum().backward()
    if not numbers:
        return [p.shape for p in whole] == [p.shape for p in alone.parameters()]
    return all(torch.equal(a.cpu(), b) for a, b in zip(whole, alone.parameters(), strict=True))


@pytest.fixture(scope="module")
def three():
    with World(3, backend="gloo", timeout=200) as world:
        yield world


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("layout", ["FSDP2", "HSDP", "TP"])
def test_a_model_started_from_meta_has_the_parameters_of_one_process(world, three, layout, numbers):
    ranks = three if layout == "FSDP2" else world
    assert all(ranks.run(start_from_meta, layout, numbers))


def draws():
    device = join()
    mesh = init_device_mesh("simgpu", (dist.get_world_size(),))
    plain = torch.arange(20.0).view(5, 4) / 20
    right = {}
    for name, placement in (("rows", Shard(0)), ("columns", Shard(1)), ("replicas", Replicate())):
        there = distribute_tensor(plain.to(device), mesh, [placement])
        for what, draw in (
            ("dropout", lambda x: nn.functional.dropout(x, 0.5)),
            ("rand_like", torch.rand_like),
            ("randn_like", torch.randn_like),
            ("randint_like", lambda x: torch.randint_like(x, 9)),
            ("bernoulli", torch.bernoulli),
            ("uniform_", lambda x: x.clone().uniform_(2, 3)),
            ("twice", lambda x: torch.rand_like(x) + torch.rand_like(x)),
        ):
            torch.manual_seed(3)
            drawn = draw(there).full_tensor().cpu()
            torch.manual_seed(3)
            right[name, what] = torch.equal(drawn, draw(plain))
        generators = torch.Generator(device).manual_seed(4), torch.Generator().manual_seed(4)
        a, b = (x.clone().normal_(generator=g) for x, g in zip((there, plain), generators, strict=True))
        right[name, "generator"] = torch.equal(a.full_tensor().cpu(), b)
    torch.manual_seed(3)
    drawn = rand(5, 4, device_mesh=mesh, placements=[Shard(0)]).full_tensor().cpu()
    torch.manual_seed(3)
    right["torch.distributed.tensor.rand"] = torch.equal(drawn, torch.rand(5, 4))
    return [name for name, same in right.items() if not same]


def test_shards_of_what_is_drawn_are_those_of_the_whole(three):
    assert three.run(draws) == [[]] * 3
