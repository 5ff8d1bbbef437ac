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


@right("as it goes, two by two in float32, the last block first")
def backwards():
    def merge(blocks):
        found, kind = None, blocks[0][0].dtype
        for out, lse in blocks[::-1]:
            out = out.to(lse.dtype).where(lse[..., None] > -math.inf, torch.zeros((), dtype=lse.dtype))
            if found is None:
                found = out, lse.clone()
                continue
            share = torch.sigmoid(lse - found[1]).nan_to_num(0)[..., None]  # of the new one
            found = torch.lerp(found[0], out, share), torch.logaddexp(found[1], lse)
        return found[0].to(kind), found[1]

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


@wrong("stored in bfloat16 after each merge", "more than once")
def often_rounded():
    def merge(blocks):
        out, lse = torch.zeros_like(blocks[0][0]), torch.full_like(blocks[0][1], -math.inf)
        for more, own in blocks:
            both = torch.logaddexp(lse, own)
            shares = [(one - both).exp().nan_to_num(0)[..., None] for one in (lse, own)]
            out = (out * shares[0] + more.masked_fill(own.isinf()[..., None], 0) * shares[1]).to(out.dtype)
            lse = both
        return out, lse

    return (merge,)


OUTS = "    outs = outs.to(lses.dtype).masked_fill(unseen[..., None], 0.0)\n"
wrong("weights in bfloat16", "more than once", {
    OUTS: "    outs, weights = outs.masked_fill(unseen[..., None], 0.0), weights.to(outs.dtype)\n",
})  # fmt: skip
wrong("what sees no key is multiplied by 0", "0 · NaN is NaN", {OUTS: "    outs = outs.to(lses.dtype)\n"})
wrong("weights are not masked", "inf − (−inf) is NaN", {".masked_fill(unseen, 0.0)": ""})
wrong("float32 comes back", "bfloat16", {".to(blocks[0][0].dtype), lse": ", lse"})
wrong("lse in bfloat16 too", "lse: not what", {
    ".to(blocks[0][0].dtype), lse": ".to(blocks[0][0].dtype), lse.to(blocks[0][0].dtype)"
})  # fmt: skip
wrong("no lse", "not two tensors", {".to(blocks[0][0].dtype), lse": ".to(blocks[0][0].dtype)"})
wrong("blocks are used up", "changes `blocks`", {"    unseen = ": "    blocks.reverse()\n    unseen = "})
wrong("the first two only", "out: not what", {"for out, _ in blocks]": "for out, _ in blocks[:2]]",
                                              "for _, lse in blocks]": "for _, lse in blocks[:2]]"})  # fmt: skip
