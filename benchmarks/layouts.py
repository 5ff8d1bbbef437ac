"""A Llama over data, tensor and pipeline parallel ranks, as nanotron trains it: the rows of ``published_many.LAYOUTS``.

Tensor parallelism by hand, with sequence parallelism: each rank has a part of every matrix, and between them a part of
the tokens. Gradients of all micro-batches add up in float32; Adam's state is shared out to the data parallel ranks
(ZeRO-1). Pipelines are torch's own 1F1B. Fused kernels stand for fused kernels: LayerNorm for RMSNorm, one product for
the rotation of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from published_many import Layout
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

import simgpu
from utils.ranks import World

WIDTH, HIDDEN, HEADS, LAYERS, VOCABULARY, LENGTH = 2048, 4096, 32, 24, 50_257, 4096
SEQUENCES = 1024
"""Of a step, on all ranks."""


class Gathered(torch.autograd.Function):
    """All tokens, from a part of them on each rank; backward adds up and gives each rank its part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _scatter(grad.contiguous(), ctx.group), None


class Scattered(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _scatter(x.contiguous(), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _gather(grad.contiguous(), ctx.group), None


def _gather(x: Tensor, group: Any) -> Tensor:
    if group.size() == 1:
        return x.view_as(x)
    whole = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x, group=group)
    return whole


def _scatter(x: Tensor, group: Any) -> Tensor:
    if group.size() == 1:
        return x.view_as(x)
    part = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    dist.reduce_scatter_tensor(part, x, group=group)
    return part


class ShardedLoss(torch.autograd.Function):
    """Cross-entropy where each rank has the scores of a part of the words."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor, group: Any) -> Tensor:
        top = scores.amax(-1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        scores = scores - top.unsqueeze(-1)
        right = scores.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        dist.all_reduce(right, group=group)
        shares = scores.exp()
        total = shares.sum(-1)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(shares.div_(total.unsqueeze(-1)))
        return (total.log() - right).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (shares,) = ctx.saved_tensors
        return shares.mul_(grad), None, None


class Block(nn.Module):
    """This rank's heads, and its part of the gated network. Tokens are [length, batch, width]."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group, parts = group, group.size()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH // parts, bias=False)
        self.out = nn.Linear(WIDTH // parts, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * HIDDEN // parts, bias=False)
        self.down = nn.Linear(HIDDEN // parts, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        whole = self.qkv(Gathered.apply(self.norm1(x), self.group))
        q, k, v = (part.unflatten(2, (-1, WIDTH // HEADS)).permute(1, 2, 0, 3) for part in whole.chunk(3, -1))
        angles = torch.ones(q.shape[-2:], dtype=q.dtype, device=q.device)
        found = scaled_dot_product_attention(q * angles, k * angles, v, is_causal=True)
        x = x + Scattered.apply(self.out(found.permute(2, 0, 1, 3).flatten(2)), self.group)
        gate, up = self.gate_up(Gathered.apply(self.norm2(x), self.group)).chunk(2, -1)
        return x + Scattered.apply(self.down(silu(gate) * up), self.group)


class Stage(nn.Module):
    """Some blocks; the first stage has the table of words, too, and the last one the loss."""

    def __init__(self, blocks: int, first: bool, last: bool, group: Any) -> None:
        super().__init__()
        self.group, self.first, self.last = group, first, last
        self.blocks = nn.ModuleList(Block(group) for _ in range(blocks))
        words = -(-VOCABULARY // group.size())
        if first or last:  # one table for both, if they are the same stage
            self.table = nn.Parameter(torch.empty(words, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        if self.first:
            x = Scattered.apply(embedding(x, self.table), self.group)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None:
            x = Gathered.apply(self.norm(x), self.group) @ self.table.t()
        return x.transpose(0, 1)


def blocks_of_stages(stages: int) -> list[int]:
    """nanotron's way: a stage is full when its products, the last table's included, exceed an equal share."""
    block = (4 * WIDTH + 3 * HIDDEN) * WIDTH
    share = (LAYERS * block + VOCABULARY * WIDTH) / stages
    counts, stage = [0] * stages, 0
    for number in range(LAYERS):
        counts[stage] += 1
        if (number + 1) * block > (stage + 1) * share:
            stage += 1
    return counts


def _step(row: Layout, micro_batches: int, device: torch.device) -> tuple[float, float]:
    """On a rank: seconds of one step with so many micro-batches, and the peak of its memory in bytes."""
    sizes = (row.pipeline, row.data, row.tensor)  # neighbours share tensors
    mesh = init_device_mesh("simgpu", sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    here, tensor, data = mesh.get_local_rank("pipeline"), mesh.get_group("tensor"), mesh.get_group("data")
    counts = blocks_of_stages(row.pipeline)
    with device:
        model = Stage(counts[here], here == 0, here == row.pipeline - 1, tensor).bfloat16()
        summed = {one: torch.zeros(one.shape, dtype=torch.float32) for one in model.parameters()}
        parts = [torch.zeros(one.numel() // row.data) for one in model.parameters()]
        tokens = torch.zeros(micro_batches * row.batch, LENGTH, dtype=torch.long)
    for parameter, total in summed.items():

        def add(parameter: Tensor, total: Tensor = total) -> None:
            total.add_(parameter.grad)
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(add)
    optimizer = torch.optim.AdamW(parts, fused=True)
    run = _schedule(row, micro_batches, model, tokens, here, mesh.get_group("pipeline"), device)

    def step() -> None:
        run()
        for total, part in zip(summed.values(), parts, strict=True):
            dist.all_reduce(total, group=data)
            part.grad = total.view(-1)[: part.numel()]
        optimizer.step()
        for parameter, part in zip(summed, parts, strict=True):
            if row.data > 1:
                dist.all_gather_into_tensor(parameter.data.view(-1)[: part.numel() * row.data], part.bfloat16(), data)
            else:
                parameter.data.copy_(part.view(parameter.shape))
            summed[parameter].zero_()

    step()  # Adam's state comes with the first one
    with simgpu.profile() as prof:
        step()
    return prof.elapsed, prof.peak_memory(device.index)


def _schedule(
    row: Layout, micro_batches: int, model: Stage, tokens: Tensor, here: int, group: Any, device: torch.device
) -> Callable[[], None]:
    def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
        targets = targets % scores.shape[-1]
        return ShardedLoss.apply(scores.float(), targets, model.group)

    if row.pipeline == 1:

        def run() -> None:
            for part in tokens.chunk(micro_batches):
                loss_of(model(part), part).backward()

        return run
    share = LENGTH // row.tensor
    hidden = torch.empty(row.batch, share, WIDTH, dtype=torch.bfloat16, device="meta", requires_grad=True)
    scores = torch.empty(row.batch, LENGTH, -(-VOCABULARY // row.tensor), dtype=torch.bfloat16, device="meta")
    stage = PipelineStage(
        *(model, here, row.pipeline, device),
        input_args=tokens[: row.batch].to("meta") if model.first else hidden,
        output_args=scores if model.last else hidden,
        group=group,
    )
    schedule = Schedule1F1B(stage, micro_batches, loss_of)
    inputs = (tokens,) if model.first else ()
    targets = {"target": tokens} if model.last else {}
    return lambda: schedule.step(*inputs, **targets, return_outputs=False)


def _on_rank(row: Layout, micro_batches: int) -> tuple[float, float]:
    simgpu.join(row.gpu, 1, numbers=False)
    dist.init_process_group("simccl")
    return _step(row, micro_batches, torch.device("simgpu", dist.get_rank()))


def simulate_layout(row: Layout) -> tuple[float, float]:
    """Seconds of a step, and the peak of rank 0's memory in GiB.

    The time grows evenly with the number of micro-batches, so a few are enough to know it.
    """
    ranks = row.data * row.tensor * row.pipeline
    whole, few = SEQUENCES // (row.data * row.batch), row.pipeline + 2
    found = []
    for micro_batches in (few, few + 2):
        if row.pipeline == 1:
            with simgpu.one_of(ranks, row.gpu, 1) as cluster:
                found.append(_step(row, micro_batches, torch.device("simgpu", cluster.local_rank)))
        else:
            with World(ranks, backend="gloo", timeout=600) as world:
                found.append(world.run(_on_rank, row, micro_batches)[0])
    (short, peak), (long, _) = found
    return short + (long - short) / 2 * (whole - few), peak / 2**30
