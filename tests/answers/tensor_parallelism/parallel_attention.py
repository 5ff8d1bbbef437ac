"""Exercise 2 of the lab on tensor parallelism: each rank has some heads. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

from checks.engine import Reference

CopyToRanks, SumOverRanks = Reference("tensor_parallelism", "CopyToRanks SumOverRanks").functions()
MINE, OUT = "torch.cat([part.chunk(ranks)[rank] for part in qkv.chunk(3)])", "out.chunk(ranks, dim=1)[rank].clone()"
TOGETHER, HEADS = "        together = CopyToRanks.apply(x) @ self.qkv.t()\n", "self.heads = heads // ranks"
FOUND = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"
MODULE = {
    "class ParallelAttention:\n    def __init__(self, qkv, out, heads):\n":
    "class ParallelAttention(torch.nn.Module):\n    def __init__(self, qkv, out, heads):\n        super().__init__()\n",
    "def __call__": "def forward",
}  # fmt: skip


@right("a module, with softmax by hand, head after head")
def module():
    class ParallelAttention(torch.nn.Module):
        def __init__(self, qkv, out, heads):
            super().__init__()
            width, ranks, rank = out.shape[0], dist.get_world_size(), dist.get_rank()
            self.size = width // heads
            own = range(rank * heads // ranks, (rank + 1) * heads // ranks)
            columns = torch.cat([torch.arange(head * self.size, (head + 1) * self.size) for head in own])
            rows = torch.cat([columns, columns + width, columns + 2 * width])
            self.qkv, self.out = torch.nn.Parameter(qkv[rows]), torch.nn.Parameter(out[:, columns].contiguous())

        def forward(self, x):
            q, k, v = torch.nn.functional.linear(CopyToRanks.apply(x), self.qkv).split(len(self.qkv) // 3, dim=-1)
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            found = []
            for start in range(0, q.shape[-1], self.size):
                one = slice(start, start + self.size)
                scores = q[..., one] @ k[..., one].transpose(1, 2) / self.size**0.5
                found.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v[..., one])
            return SumOverRanks.apply(torch.nn.functional.linear(torch.cat(found, -1), self.out))

    return (ParallelAttention,)


right("hooks in place of f and g", {
    MINE: "torch.vstack([one.tensor_split(ranks)[rank] for one in qkv.split(len(qkv) // 3)])",
    OUT: "out.tensor_split(ranks, 1)[rank].contiguous().clone()",
    TOGETHER: "        x = x * 1\n        x.register_hook(lambda gradient: CopyToRanks.backward(None, gradient))\n"
    "        together = x @ self.qkv.mT\n",
    "return SumOverRanks.apply(found.transpose(1, 2).flatten(2) @ self.out.t())":
    "y = found.permute(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ self.out.mT\n        others = y.detach().clone()\n"
    "        dist.all_reduce(others)\n        return y + (others - y.detach())",
})  # fmt: skip
right("a large mask that is made once", MODULE | {
    HEADS: f'{HEADS}\n        self.register_buffer("mask", torch.ones(256, 256).tril())',
    FOUND: "(q @ k.mT / q.shape[-1] ** 0.5).masked_fill(self.mask[: x.shape[1], : x.shape[1]] == 0, -torch.inf)"
    ".softmax(-1) @ v",
})  # fmt: skip

wrong("everything is kept", "`qkv` has another shape", {MINE: "qkv.clone()"})
wrong("the whole is kept beside", "the object keeps the whole `qkv`", {HEADS: f"{HEADS}\n        self.whole = qkv"})
wrong("gathered heads", "what is handed in forward", {
    "        return SumOverRanks": "        parts = [torch.empty_like(found) for _ in range(dist.get_world_size())]\n"
    "        dist.all_gather(parts, found.contiguous())\n        return SumOverRanks"
})  # fmt: skip
wrong("the weights are sent at the start", "what the constructor hands in", {
    HEADS: f"{HEADS}\n        dist.broadcast(qkv.clone(), 0)"
})  # fmt: skip
wrong("a transposed copy grows old", "in a second step", {
    HEADS: f"{HEADS}\n        self.turned = self.out.detach().t().clone()",
    "self.out.t())": "(self.out.t() + (self.turned - self.out.t()).detach()))",
})  # fmt: skip
