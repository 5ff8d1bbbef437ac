"""Exercise 4 of the lab on sharded data parallelism: a linear layer that frees the weight which it has gathered. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

DERIVED = "    @staticmethod\n    def backward"
GATHERED = "        return x @ gathered(shard, rows, x.shape[1]).t()\n"

right("with torch's own decorator", {
    DERIVED: "    @staticmethod\n    @torch.autograd.function.once_differentiable\n    def backward"
})  # fmt: skip


@right("lists of shards, and the product in pieces")
def in_pieces():
    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, shard, rows):
            weight = collect(shard)[: rows * x.shape[-1]].reshape(rows, -1)
            ctx.save_for_backward(x, shard)
            ctx.shape = weight.shape
            return torch.nn.functional.linear(x, weight)

        @staticmethod
        def backward(ctx, upstream):
            x, shard = ctx.saved_tensors
            ranks = dist.get_world_size()
            whole = torch.zeros(shard.numel() * ranks, dtype=shard.dtype)
            torch.mm(upstream.t() / ranks, x, out=whole[: ctx.shape.numel()].view(ctx.shape))
            mine = torch.zeros_like(shard)
            work = dist.reduce_scatter(mine, list(whole.chunk(ranks)), async_op=True)
            dx = upstream.mm(collect(shard)[: ctx.shape.numel()].view(ctx.shape))
            work.wait()
            return dx, mine, None

    def collect(shard):
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, shard.detach())
        return torch.cat(parts)

    def sharded_linear(x, shard, rows):
        return Layer.apply(x, shard, rows)

    return (sharded_linear,)


@right("hooks of autograd gather the weight for its backward pass")
def saved_tensor_hooks():
    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, rows, columns):
            ctx.count = rows * columns
            return collect(shard, rows, columns)

        @staticmethod
        def backward(ctx, upstream):
            ranks = dist.get_world_size()
            flat = torch.nn.functional.pad(upstream.reshape(-1), (0, -ctx.count % ranks)) / ranks
            mine = flat.new_empty(flat.numel() // ranks)
            dist.reduce_scatter_single(mine, flat)
            return mine, None, None

    def collect(shard, rows, columns):
        flat = shard.new_empty(shard.numel() * dist.get_world_size())
        dist.all_gather_single(flat, shard.detach())
        return flat[: rows * columns].view(rows, columns)

    def sharded_linear(x, shard, rows):
        weight = Gathered.apply(shard, rows, x.shape[1])
        address, columns = weight.data_ptr(), x.shape[1]

        def pack(saved):
            return saved.shape if saved.data_ptr() == address else saved

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            again = collect(shard, rows, columns)
            return again if packed == again.shape else again.t()

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return x @ weight.t()

    return (sharded_linear,)


wrong("autograd keeps the weight", "the gathered weight is still held", {
    "    return ShardedLinear.apply(x, shard, rows)\n":
    "    return x @ (gathered(shard, rows, x.shape[1]) + 0 * shard.sum()).t()\n"
})  # fmt: skip
wrong("the weight is saved", "the gathered weight is still held", {
    GATHERED: "        ctx.weight = gathered(shard, rows, x.shape[1])\n        return x @ ctx.weight.t()\n",
    "upstream @ gathered(shard, ctx.rows, x.shape[1])": "upstream @ ctx.weight",
})  # fmt: skip
wrong("no way back", "has lost its way back", {"return ShardedLinear.apply(x, shard, rows)":
    "return ShardedLinear.apply(x.detach(), shard.detach(), rows)"})  # fmt: skip
wrong("gathering is not waited for", "never waits for", {"shard.detach())": "shard.detach(), async_op=True)"})
wrong("what backward needs lies in the class, not in the context", "RuntimeError", {
    "        ctx.rows = rows\n": "        ShardedLinear.rows = rows\n", "ctx.rows, x": "ShardedLinear.rows, x"
})  # fmt: skip
