"""Exercise 1 of the lab on expert parallelism: tokens travel. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("functional collectives, weights multiplied where the experts are")
def functional():
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    def moe(x, chosen, weights, experts):
        world, each = dist.group.WORLD, len(experts)
        n, (tokens, k) = world.size(), chosen.shape
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = [torch.empty(n * each, dtype=torch.long) for _ in range(n)]
        dist.all_gather(counts, torch.bincount(chosen.flatten(), minlength=n * each))
        mine = slice(dist.get_rank() * each, (dist.get_rank() + 1) * each)
        out = counts[dist.get_rank()].view(n, each).sum(1).tolist()
        into = [int(one[mine].sum()) for one in counts]
        both = torch.cat([x[order // k], weights.flatten()[order].unsqueeze(1)], 1)
        came = all_to_all_single_autograd(both, into, out, world)
        number = torch.cat([torch.repeat_interleave(torch.arange(each), one[mine]) for one in counts])
        by_expert = number.argsort(stable=True)
        rows, shares = came[by_expert][:, :-1], came[by_expert][:, -1:]
        parts = rows.split(torch.bincount(number, minlength=each).tolist())
        found = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)]) * shares
        back = all_to_all_single_autograd(found[by_expert.argsort()], out, into, world)
        return torch.zeros(tokens, x.shape[1], dtype=x.dtype).index_add(0, order // k, back)

    return (moe,)


@right("a message of its own for each of a rank's experts")
def round_after_round():
    from torch.distributed.nn.functional import all_to_all_single

    def moe(x, chosen, weights, experts):
        n, each = dist.get_world_size(), len(experts)
        result = torch.zeros_like(x)
        for j, expert in enumerate(experts):
            places = [(chosen == r * each + j).nonzero(as_tuple=True) for r in range(n)]
            token, slot = (torch.cat(one) for one in zip(*places, strict=True))
            out = torch.tensor([len(one) for one, _ in places])
            into = torch.zeros(n, dtype=torch.long)
            dist.all_to_all_single(into, out)
            out, into = out.tolist(), into.tolist()
            came = all_to_all_single(x.new_empty(sum(into), x.shape[1]), x[token], into, out)
            back = all_to_all_single(x.new_empty(sum(out), x.shape[1]), expert(came), out, into)
            result = result.index_put((token,), back * weights[token, slot, None], accumulate=True)
        return result

    return (moe,)


@wrong("everything is gathered", "brings whole tokens to ranks that have none of their experts")
def gathered():
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            y = y.clone()
            dist.all_reduce(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            return Sum.apply(gradient)

    def moe(x, chosen, weights, experts):
        n, me, each = dist.get_world_size(), dist.get_rank(), len(experts)
        sizes = [None] * n
        dist.all_gather_object(sizes, len(x))
        start, total = sum(sizes[:me]), sum(sizes)
        here = slice(start, start + len(x))
        places = torch.arange(start, start + len(x))

        def whole(one):
            return Sum.apply(one.new_zeros(total, one.shape[1]).index_copy(0, places, one))

        x, weights, chosen = whole(x), whole(weights), whole(chosen)
        y = torch.zeros_like(x)
        for e, expert in enumerate(experts):
            row, place = (chosen == me * each + e).nonzero(as_tuple=True)
            y = y.index_add(0, row, expert(x[row]) * weights[row, place][:, None])
        return Sum.apply(y)[here]

    return (moe,)


wrong("padded to the fullest", "more is sent than", {
    "    came = Exchange.apply(x[order // k], out, into)":
        "    most = torch.tensor(max(out))\n    dist.all_reduce(most, op=dist.ReduceOp.MAX)\n"
        "    most = most.item()\n"
        "    pad = lambda rows, sizes: torch.cat([torch.nn.functional.pad(p, (0, 0, 0, most - len(p))) for p in rows.split(sizes)])\n"
        "    unpad = lambda rows, sizes: torch.cat([p[:n] for p, n in zip(rows.split(most), sizes)])\n"
        "    came = unpad(Exchange.apply(pad(x[order // k], out), [most] * ranks, [most] * ranks), into)",
    "    back = Exchange.apply(found, into, out)":
        "    back = unpad(Exchange.apply(pad(found, into), [most] * ranks, [most] * ranks), out)",
})  # fmt: skip
wrong("a rank without tokens returns at once", "the ranks do not call the same collectives", {
    "    ranks, k = ": "    if not len(x):\n        return x * 1\n    ranks, k = ",
})  # fmt: skip
wrong("nobody waits", "never waits for all_to_all", {
    "dist.all_to_all_single(result, rows.contiguous(), into, out)":
        "dist.all_to_all_single(result, rows.contiguous(), into, out, async_op=True)",
})  # fmt: skip
wrong("a rank without rows has no graph", "nothing more: its step is over", {
    "    back = Exchange": "    found = found if len(found) else found.detach()\n    back = Exchange",
})  # fmt: skip
