"""Exercise 1 of the lab on context parallelism: blocks of keys. What is not here is in the official solution."""

import math
from functools import reduce

import torch
from known_answers import right, wrong


@right("one block after the other, with the largest so far")
def running():
    def merge(blocks):
        kind = blocks[0][0].dtype
        largest = torch.full_like(blocks[0][1], -math.inf)
        total, weighted = torch.zeros_like(largest), torch.zeros(blocks[0][0].shape, dtype=largest.dtype)
        for out, lse in blocks:
            new = torch.maximum(largest, lse)
            safe = torch.where(new == -math.inf, 0, new)
            old, share = (largest - safe).exp(), (lse - safe).exp()
            total.mul_(old).add_(share)
            seen = torch.where((lse == -math.inf).unsqueeze(-1), 0, out.type(largest.dtype))
            weighted = weighted * old.unsqueeze(-1) + seen * share.unsqueeze(-1)
            largest = new
        found = torch.where(total[..., None] > 0, weighted / total[..., None], 0)
        return [found.type(kind), largest + total.log()]

    return (merge,)


@right("two by two, as the lecture does, in float64")
def pairs():
    def merge(blocks):
        def two(one, other):
            lse = torch.logaddexp(one[1], other[1])
            parts = [part[0] * torch.nan_to_num((part[1] - lse).exp(), nan=0.0)[..., None] for part in (one, other)]
            return parts[0] + parts[1], lse

        wide = [(out.double().masked_fill(lse.isinf()[..., None], 0), lse.double()) for out, lse in blocks]
        out, lse = reduce(two, wide)
        return out.to(blocks[0][0].dtype), lse.to(blocks[0][1].dtype)

    return (merge,)


@right("softmax over the blocks")
def softmax():
    def merge(blocks):
        outs, lses = zip(*blocks, strict=True)
        lses = torch.stack(lses, dim=-1)
        shares = torch.nan_to_num(torch.softmax(lses, dim=-1))
        outs = torch.stack(outs, dim=-1).to(lses.dtype)
        outs[(lses == -math.inf)[..., None, :].expand_as(outs)] = 0
        return torch.einsum("bhtsn,bhtn->bhts", outs, shares).to(blocks[0][0].dtype), torch.logsumexp(lses, -1)

    return (merge,)


@wrong("as in the lecture", "inf − (−inf) is NaN")
def lecture():
    def merge(blocks):
        def two(one, other):
            lse = torch.logaddexp(one[1], other[1])
            return sum(out * (own - lse).exp()[..., None] for out, own in (one, other)), lse

        return reduce(two, blocks)

    return (merge,)


@wrong("exponentials as they are", "exp() of a large lse overflows")
def plainly():
    def merge(blocks):
        total = sum(lse.exp() for _, lse in blocks)
        return sum(out * lse.exp()[..., None] for out, lse in blocks) / total[..., None], total.log()

    return (merge,)


OUTS = "    outs = outs.to(lses.dtype).masked_fill(unseen[..., None], 0.0)\n"
wrong("weights in bfloat16", "more than once", {
    OUTS: "    outs, weights = outs.masked_fill(unseen[..., None], 0.0), weights.to(outs.dtype)\n",
})  # fmt: skip
wrong("float32 comes back", "bfloat16", {".to(blocks[0][0].dtype), lse": ", lse"})
wrong("blocks are used up", "changes `blocks`", {"    unseen = ": "    blocks.reverse()\n    unseen = "})
