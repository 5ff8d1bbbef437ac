"""Exercise 2 of the lab on tensor parallelism: each rank has some heads."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


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


class ParallelAttention:
    def __init__(self, qkv, out, heads):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        mine = torch.cat([part.chunk(ranks)[rank] for part in qkv.chunk(3)])
        self.qkv = torch.nn.Parameter(mine)
        self.out = torch.nn.Parameter(out.chunk(ranks, dim=1)[rank].clone())
        self.heads = heads // ranks

    def __call__(self, x):
        together = CopyToRanks.apply(x) @ self.qkv.t()
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in together.chunk(3, dim=2))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return SumOverRanks.apply(found.transpose(1, 2).flatten(2) @ self.out.t())


MINE = "        mine = torch.cat([part.chunk(ranks)[rank] for part in qkv.chunk(3)])\n"
OUT = "        self.out = torch.nn.Parameter(out.chunk(ranks, dim=1)[rank].clone())\n"
TOGETHER = "        together = CopyToRanks.apply(x) @ self.qkv.t()\n"
RESULT = "        return SumOverRanks.apply(found.transpose(1, 2).flatten(2) @ self.out.t())\n"
SPLIT = "        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in together.chunk(3, dim=2))\n"
EQUAL = {
    "10: `x.view_as(x)` → `x`": "what forward returns as it came is made a view by autograd",
    "14: `gradient.clone()` → `gradient`": "the gradient that arrives here is nobody else's",
    "22: `y.clone()` → `y`": "the product is nobody else's",
    "13: without `gradient = gradient.clone()`": "the gradient that arrives here is nobody else's",
    "21: without `y = y.clone()`": "the product is nobody else's",
    "9: forward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "13: backward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "21: forward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "27: backward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "41: arguments of `part.unflatten(2, (self.heads, -1)).transpose(1, 2)` swapped": "the same",
    "43: arguments of `found.transpose(1, 2)` swapped": "the same",
}


# --- right, and written differently


@right("a module, with softmax by hand, head after head")
def module():
    class ParallelAttention(torch.nn.Module):
        def __init__(self, qkv, out, heads):
            super().__init__()
            width, ranks, rank = out.shape[0], dist.get_world_size(), dist.get_rank()
            size = width // heads
            own = range(rank * heads // ranks, (rank + 1) * heads // ranks)
            columns = torch.cat([torch.arange(head * size, (head + 1) * size) for head in own])
            rows = torch.cat([columns, columns + width, columns + 2 * width])
            self.qkv, self.out = torch.nn.Parameter(qkv[rows]), torch.nn.Parameter(out[:, columns].contiguous())
            self.size = size

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


@right("one autograd function around the whole region")
def one_function():
    class Region(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, qkv, out, heads):
            with torch.enable_grad():
                ctx.leaves = [one.detach().requires_grad_() for one in (x, qkv, out)]
                inside, weight, last = ctx.leaves
                parts = (inside @ weight.t()).chunk(3, -1)
                q, k, v = (part.unflatten(-1, (heads, -1)).movedim(-2, 1) for part in parts)
                found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                ctx.y = found.movedim(1, -2).flatten(2) @ last.t()
            y = ctx.y.detach().clone()
            dist.all_reduce(y)
            return y

        @staticmethod
        def backward(ctx, upstream):
            dx, *others = torch.autograd.grad(ctx.y, ctx.leaves, upstream)
            dx = dx.clone()
            work = dist.all_reduce(dx, async_op=True)
            work.wait()
            return dx, *others, None

    class ParallelAttention:
        def __init__(self, qkv, out, heads):
            ranks, rank = dist.get_world_size(), dist.get_rank()
            width = len(out) // ranks
            mine = qkv.view(3, ranks, width, -1)[:, rank].reshape(3 * width, -1).clone()
            self.qkv = torch.nn.Parameter(mine)
            self.out = torch.nn.Parameter(out.narrow(1, rank * width, width).clone())
            self.heads = heads // ranks

        def __call__(self, x):
            return Region.apply(x, self.qkv, self.out, self.heads)

    return (ParallelAttention,)


@right("hooks in place of f")
def hooks():
    def summed(gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total

    class ParallelAttention:
        def __init__(self, qkv, out, heads):
            ranks, rank = dist.get_world_size(), dist.get_rank()
            q, k, v = qkv.split(len(qkv) // 3)
            self.qkv = torch.nn.Parameter(torch.vstack([one.tensor_split(ranks)[rank] for one in (q, k, v)]))
            self.out = torch.nn.Parameter(out.tensor_split(ranks, 1)[rank].contiguous().clone())
            self.count = heads // ranks

        def __call__(self, x):
            x = x * 1
            x.register_hook(summed)
            batch, length, _ = x.shape
            q, k, v = (x @ self.qkv.mT).view(batch, length, 3, self.count, -1).permute(2, 0, 3, 1, 4)
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = found.permute(0, 2, 1, 3).reshape(batch, length, -1) @ self.out.mT
            others = y.detach().clone()
            dist.all_reduce(others)
            return y + (others - y.detach())

    return (ParallelAttention,)


# --- wrong

wrong("nothing comes back", "the result is missing", {RESULT: RESULT.replace("return ", "")})
wrong(
    "cut straight through",
    "is cut straight through q, k and v",
    {MINE: "        mine = qkv.chunk(ranks)[rank].clone()\n"},
)
wrong("everything is kept", "is the whole weight", {MINE: "        mine = qkv.clone()\n"})
wrong("the other way round", "this rank's part of the weight", {
    MINE: MINE.replace("[rank]", "[ranks - 1 - rank]"), OUT: OUT.replace("[rank]", "[ranks - 1 - rank]")
})  # fmt: skip
wrong("rows of out", "has another shape or type", {OUT: OUT.replace(", dim=1", "")})
wrong("a view of out", "is a view of a larger tensor", {OUT: OUT.replace(".clone()", "")})
wrong("no parameters", "has no nn.Parameter called `qkv`", {"torch.nn.Parameter(mine)": "mine.requires_grad_()"})
wrong("other names", "has no nn.Parameter called `qkv`", {"self.qkv": "self.weight"})
wrong("no f", "comes from this rank's heads alone", {TOGETHER: TOGETHER.replace("CopyToRanks.apply(x)", "x")})
wrong("no g", "is this rank's summand", {RESULT: RESULT.replace("SumOverRanks.apply(", "(")})
wrong("f for each of q, k and v", "sends more than it has to with all_reduce", {
    TOGETHER: "        parts = [CopyToRanks.apply(x) @ weight.t() for weight in self.qkv.chunk(3)]\n"
    "        together = torch.cat(parts, dim=2)\n"
})  # fmt: skip
wrong("not causal", "sees the tokens behind it", {", is_causal=True": ""})
wrong("all heads as one", "does not have the right numbers", {"(self.heads, -1)": "(1, -1)"})
wrong("numbers inside the head first", "does not have the right numbers", {
    SPLIT: SPLIT.replace("(self.heads, -1)).transpose(1, 2)", "(-1, self.heads)).permute(0, 3, 1, 2)")
})  # fmt: skip
wrong("scaled twice", "does not have the right numbers", {"is_causal=True": "is_causal=True, scale=1 / q.shape[-1]"})
wrong("the mean", "the result", {"dist.all_reduce(y)": "dist.all_reduce(y, dist.ReduceOp.AVG)"})
wrong("g sums its gradient too", "times too large", {
    "    @staticmethod\n    def backward(ctx, gradient):\n        return gradient\n":
    "    @staticmethod\n    def backward(ctx, gradient):\n        gradient = gradient.clone()\n"
    "        dist.all_reduce(gradient)\n        return gradient\n"
})  # fmt: skip
wrong("gathered heads", "calls dist.all_gather", {
    RESULT: "        parts = [torch.empty_like(found) for _ in range(dist.get_world_size())]\n"
    "        dist.all_gather(parts, found.contiguous())\n" + RESULT
})  # fmt: skip
wrong(
    "the way back is cut", "has lost its way back", {RESULT: RESULT.replace("self.out.t())", "self.out.t()).detach()")}
)
wrong("not waited for", "never waits for", {"dist.all_reduce(y)": "dist.all_reduce(y, async_op=True)"})
wrong("the weights are sent at the start", "calls dist.broadcast", {MINE: "        dist.broadcast(qkv, 0)\n" + MINE})
wrong("the weight is scaled", "has other numbers than before", {MINE: MINE + "        qkv.mul_(2)\n"})
wrong("torch's own", "which does the exercise", {
    RESULT: "        from torch.distributed.nn.functional import all_reduce\n"
    "        return all_reduce(found.transpose(1, 2).flatten(2) @ self.out.t())\n"
})  # fmt: skip


# --- wrong: what is kept

wrong("holds the whole weights", "the object holds more than its part of the weights", {
    "        self.heads = heads // ranks\n": "        self.heads = heads // ranks\n        self.whole = qkv\n"
})  # fmt: skip
wrong("a transposed copy grows old", "in the second round, on the same tensors with other numbers", {
    TOGETHER: "        if not hasattr(self, 'turned'):\n            self.turned = self.out.detach().t().clone()\n" + TOGETHER,
    "self.out.t())": "(self.out.t() + (self.turned - self.out.t()).detach()))",
})  # fmt: skip


@right("a module, with rows cut by a view")
def a_module():
    class ParallelAttention(torch.nn.Module):
        def __init__(self, qkv, out, heads):
            super().__init__()
            ranks, rank, width = dist.get_world_size(), dist.get_rank(), len(out)
            self.heads, size = heads // ranks, width // ranks
            self.qkv = torch.nn.Parameter(qkv.view(3, ranks, size, width)[:, rank].reshape(-1, width).clone())
            self.out = torch.nn.Parameter(out[:, rank * size : (rank + 1) * size].contiguous().clone())

        def forward(self, x):
            batch, length, _ = x.shape
            linear = torch.nn.functional.linear
            together = linear(CopyToRanks.apply(x), self.qkv).view(batch, length, 3, self.heads, -1)
            q, k, v = together.permute(2, 0, 3, 1, 4)
            scores = q @ k.mT / q.shape[-1] ** 0.5 + torch.full((length, length), -torch.inf, dtype=x.dtype).triu(1)
            return SumOverRanks.apply(linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), self.out))

    return (ParallelAttention,)


wrong("all objects have the heads of the last one", "in the second round", {
    "        self.heads = heads // ranks\n": "        type(self).heads = heads // ranks\n"
})  # fmt: skip
wrong("holds a copy of the whole weights", "the object holds more than its part of the weights", {
    "        self.heads = heads // ranks\n": "        self.heads = heads // ranks\n        self.copies = qkv.clone(), out.clone()\n"
})  # fmt: skip
wrong("holds a copy of its own part", "the object holds more than its part of the weights", {
    "        self.heads = heads // ranks\n": "        self.heads = heads // ranks\n        self.turned = self.out.detach().t().contiguous()\n"
})  # fmt: skip
wrong("x is kept", "the object still holds `x` after the backward pass", {TOGETHER: "        self.x = x\n" + TOGETHER})
wrong("a parameter is scaled in the forward pass", "`out` has other numbers than before", {
    TOGETHER: "        self.out.data.mul_(1.001)\n" + TOGETHER
})  # fmt: skip


@right("masks of all objects by length, and a large one")
def masks():
    known = {}

    class ParallelAttention(torch.nn.Module):
        def __init__(self, qkv, out, heads):
            super().__init__()
            ranks, rank = dist.get_world_size(), dist.get_rank()
            self.qkv = torch.nn.Parameter(torch.cat([part.chunk(ranks)[rank] for part in qkv.chunk(3)]))
            self.out = torch.nn.Parameter(out.chunk(ranks, dim=1)[rank].clone())
            self.heads = heads // ranks
            self.register_buffer("mask", torch.ones(256, 256).tril())

        def forward(self, x):
            length = x.shape[1]
            mask = known.setdefault(length, self.mask[:length, :length] == 0)
            together = (CopyToRanks.apply(x) @ self.qkv.t()).chunk(3, dim=2)
            q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in together)
            shares = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask, -torch.inf).softmax(-1)
            return SumOverRanks.apply((shares @ v).transpose(1, 2).flatten(2) @ self.out.t())

    return (ParallelAttention,)
