import torch


import torch.distributed as dist


from torch.distributed.tensor import Replicate, Shard


from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


from utils import launch


from utils.training import models


from checks.labs import tensor_parallelism as check


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        y = y.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def column_linear(x, weight, bias):
    ### BEGIN SOLUTION
    return CopyToRanks.apply(x) @ weight.t() + bias


def row_linear(part, weight, bias):
    ### BEGIN SOLUTION
    return SumOverRanks.apply(part @ weight.t()) + bias


class ParallelAttention:
    def __init__(self, qkv, out, heads):
        ### BEGIN SOLUTION
        ranks, rank = dist.get_world_size(), dist.get_rank()
        mine = torch.cat([part.chunk(ranks)[rank] for part in qkv.chunk(3)])
        self.qkv = torch.nn.Parameter(mine)
        self.out = torch.nn.Parameter(out.chunk(ranks, dim=1)[rank].clone())
        self.heads = heads // ranks
        ### END SOLUTION

    def __call__(self, x):
        ### BEGIN SOLUTION
        together = CopyToRanks.apply(x) @ self.qkv.t()
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in together.chunk(3, dim=2))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return SumOverRanks.apply(found.transpose(1, 2).flatten(2) @ self.out.t())


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.transpose(0, 1).contiguous()
        whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
        dist.all_gather_single(whole, x)
        return whole.transpose(0, 1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.transpose(0, 1).contiguous()
        part = gradient.new_empty(gradient.shape[0] // dist.get_world_size(), *gradient.shape[1:])
        dist.reduce_scatter_single(part, gradient)
        return part.transpose(0, 1)


def sequence_norm(x, weight, eps):
    ### BEGIN SOLUTION
    shared = CopyToRanks.apply(weight)
    return GatherSequence.apply(torch.nn.functional.rms_norm(x, weight.shape, shared, eps))


def cut(model, mesh):
    ### BEGIN SOLUTION
    plan = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel()}
    plan["output"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    plan |= {f"blocks.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
    plan |= {f"blocks.*.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("out", "down")}
    plan |= {f"blocks.*.{name}": SequenceParallel() for name in ("norm1", "norm2")}
    parallelize_module(model, mesh, plan)
    f = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate(), use_local_output=False)
    parallelize_module(model, mesh, {"blocks.*.norm1": f, "blocks.*.norm2": f})
