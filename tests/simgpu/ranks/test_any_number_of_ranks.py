"""What torch offers for many ranks, on 2, 3, 4 and 8 of them, with numbers and with shapes only."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from simgpu_ranks import communication, join
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import simgpu
from utils.ranks import World

WIDTH = 12


@pytest.fixture(scope="module", params=[3, *(pytest.param(ranks, marks=pytest.mark.nightly) for ranks in (2, 4, 8))])
def world(request):
    with World(request.param, backend="gloo", timeout=200) as world:
        yield world


def net(layers=3):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)])


def batch(ranks):
    return torch.randn(2 * ranks, WIDTH, generator=torch.Generator().manual_seed(1))


def mine(device):
    return batch(dist.get_world_size()).chunk(dist.get_world_size())[dist.get_rank()].to(device)


def worst(parameters, others):
    pairs = zip(parameters, others, strict=True)
    return max((_whole(a).cpu() - _whole(b).cpu()).abs().max().item() for a, b in pairs)


def _whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def every_collective(device):
    """What each collective of c10d, and each functional one, has written; synchronous and asynchronous."""
    rank, size = dist.get_rank(), dist.get_world_size()
    last, pair = size - 1, dist.new_group([0, size - 1])

    def numbers(*shape):
        return (torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 10 * rank).to(device)

    def rows(n=size):
        return [torch.zeros(3, device=device) for _ in range(n)]

    wrote, works = {}, []
    for asynchronous in False, True:

        def note(name, tensors, work, asynchronous=asynchronous):
            wrote[name, asynchronous] = tensors
            works.append(work)

        options = {"async_op": asynchronous}
        for op in "SUM", "MAX", "MIN", "PRODUCT", "AVG":
            tensor = numbers(2, 3)
            note(op, [tensor], dist.all_reduce(tensor, getattr(dist.ReduceOp, op), **options))
        tensor = numbers(3)
        note("broadcast", [tensor], dist.broadcast(tensor, last, **options))
        tensor = numbers(3)
        note("reduce", [tensor] if rank == last else [], dist.reduce(tensor, last, **options))
        tensors = rows()
        note("all_gather", tensors, dist.all_gather(tensors, numbers(3), **options))
        tensor = torch.zeros(3 * size, device=device)
        note("gathered", [tensor], dist.all_gather_into_tensor(tensor, numbers(3), **options))
        tensor = torch.zeros(3, device=device)
        note("reduce_scatter", [tensor], dist.reduce_scatter(tensor, [numbers(3) + i for i in range(size)], **options))
        tensor = torch.zeros(3, device=device)
        note("scattered", [tensor], dist.reduce_scatter_tensor(tensor, numbers(3 * size), **options))
        tensors = rows() if rank == last else []
        note("gather", tensors, dist.gather(numbers(3), tensors or None, dst=last, **options))
        tensor = torch.zeros(3, device=device)
        parts = [numbers(3) * i for i in range(size)] if rank == last else None
        note("scatter", [tensor], dist.scatter(tensor, parts, src=last, **options))
        splits = [rank + i for i in range(size)]
        tensor = torch.zeros(sum(splits), 2, device=device)
        work = dist.all_to_all_single(tensor, numbers(sum(splits), 2), splits, splits, **options)
        note("all_to_all_single", [tensor], work)
        if rank in (0, last):
            tensor = numbers(4)
            note("pair", [tensor], dist.all_reduce(tensor, group=pair, **options))
        if str(device) != "cpu":  # gloo has no lists of lists
            tensors = rows()
            note("all_to_all", tensors, dist.all_to_all(tensors, [numbers(3) + i for i in range(size)], **options))
        works.append(dist.barrier(async_op=True) if asynchronous else dist.barrier())
    for work in works:
        if work is not None:
            work.wait()
    came = torch.zeros(3, device=device)
    if rank % 2 == 0 and rank < last:
        dist.send(numbers(3), rank + 1)
    elif rank % 2:
        dist.recv(came, rank - 1)
    around = torch.zeros(3, device=device)
    swaps = [dist.P2POp(dist.isend, numbers(3), (rank + 1) % size), dist.P2POp(dist.irecv, around, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(swaps):
        work.wait()
    wrote["messages"] = [came, around]
    group = dist.group.WORLD
    wrote["together"] = [numbers(3), numbers(3) + 1]
    with dist._coalescing_manager(async_ops=True) as work:
        for tensor in wrote["together"]:
            dist.all_reduce(tensor)
    work.wait()
    several = functional.all_reduce_coalesced([numbers(2), numbers(3)], "sum", group)
    wrote["functional"] = [
        functional.all_reduce(numbers(3), "max", group),
        functional.all_gather_tensor(numbers(3), 0, group),
        functional.reduce_scatter_tensor(numbers(3 * size), "avg", 0, group),
        functional.broadcast(numbers(3), last, group),
        functional.all_to_all_single(numbers(sum(splits), 2), splits, splits, group),
        *several,
    ]
    return {name: [functional.wait_tensor(tensor) for tensor in tensors] for name, tensors in wrote.items()}


def on_both(numbers):
    device = join(numbers)
    simulated = every_collective(device)
    if not numbers:
        return {name: [tuple(tensor.shape) for tensor in tensors] for name, tensors in simulated.items()}
    simulated = {name: [tensor.cpu() for tensor in tensors] for name, tensors in simulated.items()}
    return every_collective("cpu"), simulated


def test_every_collective_gives_what_gloo_gives_synchronous_or_not_and_shapes_without_numbers(world):
    shapes = world.run(on_both, False)
    for (on_cpu, simulated), only in zip(world.run(on_both, True), shapes, strict=True):
        assert len(on_cpu) >= 30
        for name, tensors in on_cpu.items():
            torch.testing.assert_close(simulated[name], tensors, rtol=0, atol=0, msg=str(name))
        assert only == {name: [tuple(tensor.shape) for tensor in tensors] for name, tensors in simulated.items()}


def objects(numbers):
    join(numbers)
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered, from_all = [None] * size, [None] * size if rank == 0 else None
    dist.all_gather_object(gathered, {"rank": rank})
    dist.gather_object(rank * 10, from_all, dst=0)
    said, one = [rank, "said"] if rank == 0 else [None, None], [None]
    dist.broadcast_object_list(said, src=0)
    dist.scatter_object_list(one, [f"for {i}" for i in range(size)] if rank == 0 else None, src=0)
    return [each["rank"] for each in gathered], from_all, said, one


@pytest.mark.parametrize("numbers", [True, False])
def test_objects_travel_too(world, numbers):
    for rank, (gathered, from_all, said, one) in enumerate(world.run(objects, numbers)):
        assert gathered == list(range(world.size))
        assert from_all == (None if rank else [10 * i for i in range(world.size)])
        assert (said, one) == ([0, "said"], [f"for {rank}"])


def meshes(numbers):
    device = join(numbers)
    size, found = dist.get_world_size(), []
    for dimensions in range(1, 5):
        shape = [size] + [1] * (dimensions - 1)
        if size % 2 == 0 and dimensions > 1:
            shape[0], shape[-1] = size // 2, 2
        mesh = init_device_mesh("simgpu", tuple(shape), mesh_dim_names=tuple("abcd"[:dimensions]))
        for name in mesh.mesh_dim_names:
            tensor = torch.ones(3, device=device)
            dist.all_reduce(tensor, group=mesh.get_group(name))
            found.append((mesh[name].size(), tensor.sum().item() / 3 if numbers else None, tuple(tensor.shape)))
    return found


def test_meshes_have_one_to_four_dimensions(world):
    for found in world.run(meshes, True):
        assert len(found) == 1 + 2 + 3 + 4
        assert all(size == total for size, total, _ in found)
    for found in world.run(meshes, False):
        assert all(shape == (3,) for *_, shape in found)


def prefetching(numbers):
    """FSDP2: explicit prefetch, and gradients that are added up over two batches before they are reduced."""
    device = join(numbers)
    alone, model = net(), net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for i, layer in enumerate(model):
        layer.set_modules_to_forward_prefetch(list(model)[i + 1 : i + 2])
        layer.set_modules_to_backward_prefetch(list(model)[max(0, i - 1) : i])
    x = mine(device)
    with simgpu.profile() as prof:
        for last in False, True:
            model.set_requires_gradient_sync(last)
            model(x).sum().backward()
    sent = [name for name, *_ in communication(prof)]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not numbers:
        return sent.count("reduce-scatter"), None
    (2 * alone(batch(dist.get_world_size())).sum() / dist.get_world_size()).backward()
    nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
    gradients = [[p.grad for p in each.parameters()] for each in (model, alone)]
    return sent.count("reduce-scatter"), worst(*gradients)


def test_fsdp2_prefetches_accumulates_and_clips(world):
    for reduced, difference in world.run(prefetching, True):
        assert reduced == 3
        assert difference < 1e-6
    assert world.run(prefetching, False) == [(3, None)] * world.size


def parallel_loss(numbers):
    device = join(numbers)
    size = dist.get_world_size()
    mesh = init_device_mesh("simgpu", (size,))
    torch.manual_seed(3)
    alone, model = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
    model.load_state_dict(alone.state_dict())
    model.to(device)
    plan = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, plan)
    targets = torch.arange(2 * size) % 24
    with simgpu.profile() as prof, loss_parallel():
        loss = nn.functional.cross_entropy(model(batch(size).to(device)), targets.to(device))
        loss.backward()
    sent = {name for name, *_ in communication(prof)}
    if not numbers:
        return sent, tuple(model.weight.grad.to_local().shape)
    nn.functional.cross_entropy(alone(batch(size)), targets).backward()
    return sent, worst([model.weight.grad, model.bias.grad], [alone.weight.grad, alone.bias.grad])


def test_the_loss_is_computed_on_parts_of_the_scores(world):
    for sent, difference in world.run(parallel_loss, True):
        assert sent == {"all-reduce"}  # three numbers for each row, and never the scores
        assert difference < 1e-6
    assert world.run(parallel_loss, False) == [({"all-reduce"}, (24 // world.size, WIDTH))] * world.size


def experts(numbers):
    device = join(numbers)
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = [[(i + 2 * j) % 3 for j in range(size)] for i in range(size)]  # tokens from rank i to expert j
    sent, received = counts[rank], [row[rank] for row in counts]
    tokens = torch.randn(sum(sent), 8, generator=torch.Generator().manual_seed(rank))
    here = tokens.to(device).requires_grad_()
    at_experts = all_to_all_single_autograd(here, received, sent, dist.group.WORLD)
    back = all_to_all_single_autograd(at_experts * (rank + 1), sent, received, dist.group.WORLD)
    back.sum().backward()
    if not numbers:
        return tuple(at_experts.shape) == (sum(received), 8) and here.grad.shape == here.shape
    factors = torch.tensor([j + 1.0 for j in range(size) for _ in range(sent[j])]).unsqueeze(1)
    return torch.equal(back.detach().cpu(), tokens * factors) and torch.equal(
        here.grad.cpu(), factors.expand_as(tokens)
    )


@pytest.mark.parametrize("numbers", [True, False])
def test_experts_get_uneven_numbers_of_tokens(world, numbers):
    assert world.run(experts, numbers) == [True] * world.size


def uneven_inputs(numbers):
    """``Join`` and autocast: rank 0 ends first."""
    device = join(numbers)
    model = DistributedDataParallel(net().to(device))
    seen = 0
    with Join([model]):
        for _ in range(1 + dist.get_rank()):
            with torch.autocast("simgpu", dtype=torch.bfloat16):
                out = model(mine(device))
            out.float().sum().backward()
            seen += 1
    return seen, out.dtype


@pytest.mark.parametrize("numbers", [True, False])
def test_ranks_with_fewer_batches_join_the_collectives_of_the_others(world, numbers):
    assert world.run(uneven_inputs, numbers) == [(1 + rank, torch.bfloat16) for rank in range(world.size)]
