"""Pipelines, checkpoints, sharded optimizers, experts and long contexts on simulated GPUs of ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from simgpu_ranks import communication, join
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel

import simgpu
from utils.ranks import RankError, World

RANKS = 4
WIDTH = 16


@pytest.fixture(scope="module")
def world():
    with World(RANKS, backend="gloo", timeout=200) as world:
        yield world


def layers(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


# --- Pipelining ---------------------------------------------------------------------------------------------

SCHEDULES = {
    "GPipe": 1,
    "1F1B": 1,
    "Interleaved1F1B": 2,
    "LoopedBFS": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}


def pipeline(name, chunks, numbers, width=WIDTH, micro_batches=8):
    device = join(numbers, launch_s=0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    everything = layers(ranks * chunks)
    mine = [rank + ranks * chunk for chunk in range(chunks)]
    if name in ("ZBVZeroBubble", "DualPipeV"):
        mine = [rank, 2 * ranks - 1 - rank]
    stages = [PipelineStage(everything[i].to(device), i, ranks * chunks, device) for i in mine]
    loss_of = nn.MSELoss()
    schedule = schedules.get_schedule_class(name)(stages if chunks > 1 else stages[0], micro_batches, loss_fn=loss_of)
    torch.manual_seed(1)
    x, y = torch.randn(2 * micro_batches, WIDTH), torch.randn(2 * micro_batches, WIDTH)
    inputs = (x.to(device),) if 0 in mine else ()
    targets = {"target": y.to(device)} if ranks * chunks - 1 in mine else {}
    with simgpu.profile() as prof:
        schedule.step(*inputs, **targets)
    busy = prof.busy(rank)
    if not numbers:
        return prof.elapsed, busy, len(communication(prof))
    alone = layers(ranks * chunks)
    loss_of(nn.Sequential(*alone)(x), y).backward()
    gradients = [
        (p.grad.cpu() / 1, q.grad)
        for i in mine
        for p, q in zip(everything[i].parameters(), alone[i].parameters(), strict=True)
    ]
    return prof.elapsed, busy, max((a - b).abs().max().item() for a, b in gradients)


@pytest.mark.parametrize("name", SCHEDULES)
def test_torchs_pipeline_schedules_are_one_process_also_with_shapes_only(world, name):
    real = world.run(pipeline, name, SCHEDULES[name], True)
    shapes = world.run(pipeline, name, SCHEDULES[name], False)
    assert max(worst for *_, worst in real) < 1e-6
    assert [elapsed for elapsed, *_ in shapes] == pytest.approx([elapsed for elapsed, *_ in real], rel=1e-9)
    assert all(sent > 0 for *_, sent in shapes)


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.nightly) for ranks in (3, 8))])
def test_pipelines_of_other_numbers_of_ranks_are_one_process_too(ranks):
    with World(ranks, backend="gloo", timeout=400) as world:
        for name in ("GPipe", "1F1B", "Interleaved1F1B") if ranks == 2 else SCHEDULES:
            real, shapes = (
                world.run(pipeline, name, SCHEDULES[name], numbers, micro_batches=2 * ranks)
                for numbers in (True, False)
            )
            assert max(worst for *_, worst in real) < 1e-6
            assert [elapsed for elapsed, *_ in shapes] == pytest.approx([elapsed for elapsed, *_ in real], rel=1e-9)


# --- Checkpoints --------------------------------------------------------------------------------------------


def sharded(mesh_shape, folder, action):
    device = join()
    mesh = init_device_mesh("simgpu", mesh_shape, mesh_dim_names=("replicate", "shard")[-len(mesh_shape) :])
    torch.manual_seed(0 if action == "save" else 1)
    net = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4)).to(device)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    net(torch.ones(2, 16, device=device)).sum().backward()
    optimizer.step()
    if action != "save":
        before = [p.full_tensor().cpu() for p in net.parameters()]
    model_state, optimizer_state = get_state_dict(net, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    if action == "save":
        dcp.async_save(state, checkpoint_id=folder).result()
        dcp.save(state, checkpoint_id=f"{folder}/plain")
    else:
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        assert not torch.equal(before[0], net[0].weight.full_tensor().cpu())
    moments = [optimizer.state[p]["exp_avg"].full_tensor().cpu().tolist() for p in net.parameters()]
    return [p.full_tensor().cpu().tolist() for p in net.parameters()], moments


def test_a_sharded_checkpoint_is_loaded_into_another_layout(world, tmp_path):
    saved = world.run(sharded, (world.size,), str(tmp_path), "save")
    for folder in tmp_path, tmp_path / "plain":
        loaded = world.run(sharded, (2, world.size // 2), str(folder), "load")
        assert all(one == saved[0] for one in [*saved, *loaded])


# --- A sharded optimizer ------------------------------------------------------------------------------------


def zero_redundancy():
    device = join()
    results = []
    for make in (
        lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.1, foreach=False),
        lambda parameters: torch.optim.Adam(parameters, lr=0.1, foreach=False),
    ):
        net = DistributedDataParallel(nn.Sequential(*layers(3)).to(device))
        optimizer = make(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(2, WIDTH, device=device) * dist.get_rank()).sum().backward()
            optimizer.step()
        results.append([p.detach().cpu() for p in net.parameters()])
        held = {} if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer.state
        held = held or optimizer.optim.state
        results.append(len(held))
    return all(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=True)), results[1], results[3]


def test_zero_redundancy_optimizer_steps_like_adam_with_a_part_of_its_state(world):
    ranks = world.run(zero_redundancy)
    assert all(same for same, *_ in ranks)
    assert sum(part for _, part, _ in ranks) == ranks[0][2] == 6


# --- Experts: uneven all-to-all with gradients --------------------------------------------------------------


def experts():
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    device = join()
    rank = dist.get_rank()
    torch.manual_seed(rank)
    counts = [[(i + 2 * j) % 3 for j in range(RANKS)] for i in range(RANKS)]  # tokens from rank i to expert j
    sent, received = counts[rank], [row[rank] for row in counts]
    tokens = torch.randn(sum(sent), 8)
    here = tokens.to(device).requires_grad_()
    at_experts = all_to_all_single_autograd(here, received, sent, dist.group.WORLD)
    back = all_to_all_single_autograd(at_experts * (rank + 1), sent, received, dist.group.WORLD)
    back.sum().backward()
    factors = torch.tensor([j + 1.0 for j in range(RANKS) for _ in range(sent[j])]).unsqueeze(1)
    return torch.equal(back.detach().cpu(), tokens * factors), torch.equal(here.grad.cpu(), factors.expand_as(tokens))


def test_experts_exchange_uneven_numbers_of_tokens_forward_and_backward(world):
    assert world.run(experts) == [(True, True)] * RANKS


# --- Long contexts ------------------------------------------------------------------------------------------


def ring_attention(numbers=True):
    device = join(numbers)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, 2, 8 * ranks, 8, generator=generator) for _ in range(3))
    part = slice(8 * rank, 8 * rank + 8)
    mine, keys, values = (each[:, :, part].contiguous().to(device) for each in (q, k, v))
    total, weight, top = torch.zeros_like(mine), 0.0, torch.full((1, 2, 8, 1), -torch.inf, device=device)
    for step in range(ranks):
        following = [torch.empty_like(keys), torch.empty_like(values)]
        messages = [dist.P2POp(dist.isend, each, (rank + 1) % ranks) for each in (keys, values)]
        messages += [dist.P2POp(dist.irecv, each, (rank - 1) % ranks) for each in following]
        works = dist.batch_isend_irecv(messages) if step < ranks - 1 else []
        scores = mine @ keys.transpose(-1, -2) / 8**0.5
        highest = torch.maximum(top, scores.amax(-1, keepdim=True))
        old, new = torch.exp(top - highest), torch.exp(scores - highest)
        total, weight, top = total * old + new @ values, weight * old + new.sum(-1, keepdim=True), highest
        for work in works:
            work.wait()
        keys, values = following
    if not numbers:
        return tuple((total / weight).shape)
    expected = nn.functional.scaled_dot_product_attention(q, k, v)[:, :, part]
    return ((total / weight).cpu() - expected).abs().max().item()


def test_attention_around_a_ring_is_attention(world):
    assert max(world.run(ring_attention)) < 1e-6
    assert set(world.run(ring_attention, numbers=False)) == {(1, 2, 8, 8)}


def in_context_parallel(numbers, causal, method):
    from torch.distributed.tensor.experimental import _attention, context_parallel

    device = join(numbers)
    mesh = init_device_mesh("simgpu", (dist.get_world_size(),))
    _attention.set_rotate_method(method)
    _attention._cp_options.enable_load_balance = causal  # torch's own rule
    generator = torch.Generator().manual_seed(1)
    alone = [torch.randn(2, 4, 32, 16, generator=generator).requires_grad_() for _ in range(3)]
    buffers = [each.detach().to(device) for each in alone]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 3):
        query, key, value = (each.detach().requires_grad_() for each in buffers)
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        out.square().sum().backward()
        parts = [out.detach(), query.grad, key.grad, value.grad]
        found = _attention.context_parallel_unshard(mesh, parts, [2] * 4)
    assert [tuple(each.shape) for each in buffers] == [(2, 4, 32, 16)] * 3  # as before
    if not numbers:
        return tuple(out.shape), {tuple(each.shape) for each in found}
    expected = nn.functional.scaled_dot_product_attention(*alone, is_causal=causal)
    expected.square().sum().backward()
    pairs = zip(found, [expected, *(each.grad for each in alone)], strict=True)
    return tuple(out.shape), max((a.cpu() - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("causal", [False, True])
def test_torchs_context_parallel_is_attention_forward_and_backward(world, causal):
    for method in "allgather", "alltoall":
        for shape, difference in world.run(in_context_parallel, True, causal, method):
            assert shape == (2, 4, 32 // world.size, 16)
            assert difference < 1e-5  # gradients up to 10, whose parts are added in another order
    shapes = (2, 4, 32 // world.size, 16), {(2, 4, 32, 16)}
    assert world.run(in_context_parallel, False, causal, "alltoall") == [shapes] * world.size


@pytest.mark.extras
@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.nightly) for ranks in (2, 8))])
def test_contexts_and_checkpoints_of_other_numbers_of_ranks(ranks, tmp_path):
    with World(ranks, backend="gloo", timeout=400) as world:
        test_attention_around_a_ring_is_attention(world)
        if ranks != 3:  # which can share neither 32 tokens nor halves of a mesh equally
            test_torchs_context_parallel_is_attention_forward_and_backward(world, causal=False)
            test_torchs_context_parallel_is_attention_forward_and_backward(world, causal=True)
            test_a_sharded_checkpoint_is_loaded_into_another_layout(world, tmp_path)


# --- What is refused, and what only seems so ----------------------------------------------------------------


def refused():
    from torch.distributed.fsdp import FullyShardedDataParallel

    device = join()
    with pytest.raises(NotImplementedError, match="use fully_shard"):
        FullyShardedDataParallel(nn.Linear(4, 4))
    norm = nn.SyncBatchNorm(4).to(device)
    with pytest.raises(NotImplementedError, match="LayerNorm"):
        norm(torch.ones(2, 4, device=device))
    with pytest.raises(RuntimeError, match="name the src"):
        dist.recv(torch.empty(1, device=device))
    norm.eval()(torch.ones(2, 4, device=device))


def in_bf16():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    device = join()
    net, alone = nn.Linear(8, 8).to(device), nn.Linear(8, 8)
    ddp = DistributedDataParallel(net)
    alone.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    with simgpu.profile() as prof:
        ddp(torch.full((2, 8), dist.get_rank() + 1.0, device=device)).sum().backward()
    alone(torch.full((2, 8), 2.5)).sum().backward()
    sent = [event.nbytes for event in prof.events if event.name == "all-reduce"]
    return sent, torch.allclose(net.weight.grad.cpu(), alone.weight.grad, rtol=2**-7)


def test_what_cannot_work_says_what_to_do_instead(world):
    world.run(refused)


def test_gradients_in_bf16_are_half_the_bytes(world):
    assert world.run(in_bf16) == [([2 * 72], True)] * RANKS


# --- Uneven inputs, scaled losses, coalesced collectives, meshes, and one rank that runs out of memory ----------


def odds_and_ends():
    from torch.distributed.algorithms.join import Join

    device = join(nodes=2)
    rank = dist.get_rank()
    ddp = DistributedDataParallel(nn.Linear(8, 8).to(device))
    with Join([ddp]):
        for _ in range(1 + rank):
            ddp(torch.ones(2, 8, device=device)).sum().backward()
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    scaler = torch.amp.GradScaler("simgpu", init_scale=8.0, growth_interval=1)
    with torch.autocast("simgpu", dtype=torch.float16):
        loss = ddp(torch.ones(2, 8, device=device)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    several = [torch.full((3,), rank + i, device=device) for i in range(2)]
    with dist._coalescing_manager(async_ops=True) as together:
        for tensor in several:
            dist.all_reduce(tensor)
    together.wait()
    mesh = init_device_mesh("simgpu", (1, 2, 1, 2), mesh_dim_names=("a", "b", "c", "d"))
    along = torch.tensor([1.0 + rank], device=device)
    dist.all_reduce(along, group=mesh.get_group("b"))
    return scaler.get_scale(), [tensor[0].item() for tensor in several], along.item()


def test_joins_scaled_losses_coalesced_collectives_and_meshes_of_four_dimensions(world):
    ranks = world.run(odds_and_ends)
    assert [scale for scale, *_ in ranks] == [16.0] * RANKS
    assert [several for _, several, _ in ranks] == [[6.0, 10.0]] * RANKS
    assert [along for *_, along in ranks] == [4.0, 6.0, 4.0, 6.0]  # 0 with 2, 1 with 3


def one_is_full():
    device = join(numbers=False)
    x = torch.ones(1, device=device)
    if dist.get_rank() == 1:
        torch.empty(1 << 40, device=device)
    dist.all_reduce(x)


def test_a_rank_without_memory_is_named_and_frees_the_others(world):
    with pytest.raises(RankError, match="rank 1 failed: OutOfMemoryError: simgpu out of memory"):
        world.run(one_is_full)
    assert world.run(experts) == [(True, True)] * RANKS
