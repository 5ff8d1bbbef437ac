"""Long contexts, sharded checkpoints and hooks on simulated GPUs of ranks."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from simgpu_ranks import join
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


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


def test_what_cannot_work_says_what_to_do_instead(world):
    world.run(refused)
