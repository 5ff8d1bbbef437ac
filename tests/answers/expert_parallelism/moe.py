"""Exercise 1 of the lab on expert parallelism: tokens travel. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("torch's own function with gradients, experts skipped where they have no rows")
def with_torchs_function():
    from torch.distributed.nn.functional import all_to_all_single

    def moe(x, chosen, weights, experts):
        n, k, each = dist.get_world_size(), chosen.size(1), len(experts)
        flat = chosen.reshape(-1)
        index = torch.sort(flat, stable=True).indices
        told = torch.stack([(flat == e).sum() for e in range(n * each)])
        heard = torch.zeros_like(told)
        dist.all_to_all_single(heard, told)
        told, heard = told.reshape(n, each), heard.reshape(n, each)
        send, get = told.sum(1).tolist(), heard.sum(1).tolist()
        rows = x.repeat_interleave(k, dim=0)[index]
        came = all_to_all_single(rows.new_zeros(sum(get), x.size(1)), rows, get, send)
        pieces = [list(part.split(heard[r].tolist())) for r, part in enumerate(came.split(get))]
        made = [[None] * each for _ in range(n)]
        for e in range(each):
            together = torch.cat([pieces[r][e] for r in range(n)])
            if len(together):
                together = experts[e](together)
            for r, part in enumerate(together.split(heard[:, e].tolist())):
                made[r][e] = part
        found = torch.cat([part for row in made for part in row])
        back = all_to_all_single(rows.new_zeros(sum(send), x.size(1)), found, send, get)
        in_place = back[torch.argsort(index)].view(len(x), k, x.size(1))
        return (in_place * weights.unsqueeze(-1)).sum(1)

    return (moe,)


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


@right("each token once for each rank, by messages, added up where the experts are")
def once_for_each_rank():
    class Messages(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, out, into):
            ctx.sizes = out, into
            me, n = dist.get_rank(), dist.get_world_size()
            parts = [part.contiguous() for part in tensor.detach().split(out)]
            got = [tensor.new_empty(rows, *tensor.shape[1:]) for rows in into]
            got[me] = parts[me].clone()
            others = [r for r in range(n) if r != me]
            sends = [dist.P2POp(dist.isend, parts[r], r) for r in others if out[r]]
            receives = [dist.P2POp(dist.irecv, got[r], r) for r in others if into[r]]
            if sends + receives:
                for work in dist.batch_isend_irecv(sends + receives):
                    work.wait()
            return torch.cat(got)

        @staticmethod
        def backward(ctx, gradient):
            out, into = ctx.sizes
            return Messages.apply(gradient, into, out), None, None

    def moe(x, chosen, weights, experts):
        n, each, me = dist.get_world_size(), len(experts), dist.get_rank()
        goes = [((chosen // each) == r).any(1).nonzero().flatten() for r in range(n)]
        out = [len(one) for one in goes]
        everyone = [None] * n
        dist.all_gather_object(everyone, out)
        into = [one[me] for one in everyone]
        send = torch.cat(goes)
        came = Messages.apply(x[send], out, into)
        numbers = Messages.apply(chosen[send], out, into)
        shares = Messages.apply(weights[send], out, into)
        total = torch.zeros_like(came)
        for e, expert in enumerate(experts):
            row, place = (numbers == me * each + e).nonzero(as_tuple=True)
            total = total.index_add(0, row, expert(came[row]) * shares[row, place].unsqueeze(1))
        back = Messages.apply(total, into, out)
        return torch.zeros_like(x).index_add(0, send, back)

    return (moe,)


@right("dispatch and combine as one autograd function each, begun and waited for later")
def two_functions():
    def travel(rows, out, into):
        got = torch.zeros((sum(into), *rows.shape[1:]), dtype=rows.dtype)
        work = dist.all_to_all_single(
            got, rows.contiguous(), output_split_sizes=into, input_split_sizes=out, async_op=True
        )
        work.wait()
        return got

    class Dispatch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, index, out, into):
            ctx.index, ctx.out, ctx.into, ctx.tokens = index, out, into, len(x)
            return travel(x[index], out, into)

        @staticmethod
        def backward(ctx, gradient):
            back = travel(gradient, ctx.into, ctx.out)
            return back.new_zeros(ctx.tokens, back.shape[1]).index_add_(0, ctx.index, back), None, None, None

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, found, weights, index, out, into, tokens):
            back = travel(found, into, out)
            ctx.save_for_backward(back, weights)
            ctx.index, ctx.out, ctx.into = index, out, into
            return back.new_zeros(tokens, back.shape[1]).index_add_(0, index, back * weights[:, None])

        @staticmethod
        def backward(ctx, gradient):
            back, weights = ctx.saved_tensors
            rows = gradient[ctx.index]
            found = travel(rows * weights[:, None], ctx.out, ctx.into)
            return found, (rows * back).sum(1), None, None, None, None

    def moe(x, chosen, weights, experts):
        n, each, (tokens, k) = dist.get_world_size(), len(experts), chosen.shape
        pairs = sorted((int(e), t, j) for t, row in enumerate(chosen) for j, e in enumerate(row))
        index = torch.tensor([t for _, t, _ in pairs], dtype=torch.long)
        shares = weights.flatten()[torch.tensor([t * k + j for _, t, j in pairs], dtype=torch.long)]
        numbers = torch.tensor([e for e, _, _ in pairs], dtype=torch.long)
        out = [sum(e // each == r for e, _, _ in pairs) for r in range(n)]
        into = torch.empty(n, dtype=torch.long)
        dist.all_to_all_single(into, torch.tensor(out))
        into = into.tolist()
        theirs = travel(numbers, out, into) % each
        came = Dispatch.apply(x, index, out, into)
        found = torch.empty_like(came)
        for e, expert in enumerate(experts):
            found[theirs == e] = expert(came[theirs == e])
        return Combine.apply(found, shares, index, out, into, tokens)

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


@right("one autograd function for all of it, with gradients by hand")
def all_by_hand():
    def travel(rows, out, into):
        got = rows.new_empty(sum(into), *rows.shape[1:])
        dist.all_to_all_single(got, rows.contiguous(), into, out)
        return got

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weights, chosen, experts):
            n, each, k = dist.get_world_size(), len(experts), chosen.shape[1]
            order = torch.sort(chosen.flatten())[1]
            numbers = chosen.flatten()[order]
            out = torch.bincount(numbers // each, minlength=n)
            into = travel(out, [1] * n, [1] * n).tolist()
            out = out.tolist()
            theirs = travel(numbers, out, into) % each
            came = travel(x[order // k], out, into).detach()
            with torch.enable_grad():
                came.requires_grad_()
                parts = [(theirs == e).nonzero().flatten() for e in range(each)]
                results = torch.cat([expert(came[part]) for expert, part in zip(experts, parts, strict=True)])
                found = results[torch.cat(parts).argsort()]
            back = travel(found.detach(), into, out)
            ctx.kept = x, weights, order, k, out, into, came, found, back
            return torch.zeros_like(x).index_add(0, order // k, back * weights.flatten()[order, None])

        @staticmethod
        def backward(ctx, gradient):
            x, weights, order, k, out, into, came, found, back = ctx.kept
            rows = gradient[order // k]
            shares = torch.empty_like(weights).flatten().index_copy(0, order, (rows * back).sum(1))
            with torch.enable_grad():
                found.backward(travel(rows * weights.flatten()[order, None], out, into))
            mine = torch.zeros_like(x).index_add(0, order // k, travel(came.grad, into, out))
            return mine, shares.view_as(weights), None, None

    def moe(x, chosen, weights, experts):
        return Layer.apply(x, weights, chosen, experts)

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
wrong("once for each source", "called more than once", {
    "found = found.index_copy(0, mine, network(came[mine]))":
        "found = found.index_copy(0, mine, torch.cat([network(came[one]) for one in mine.split(5)]) if len(mine) else came[mine])",
})  # fmt: skip
wrong("a rank without tokens returns at once", "the ranks do not call the same collectives", {
    "    ranks, k = ": "    if not len(x):\n        return x * 1\n    ranks, k = ",
})  # fmt: skip
wrong("nobody waits", "never waits for all_to_all", {
    "dist.all_to_all_single(result, rows.contiguous(), into, out)":
        "dist.all_to_all_single(result, rows.contiguous(), into, out, async_op=True)",
})  # fmt: skip
wrong("the way back with the sizes of the way there", "raised", {
    "Exchange.apply(gradient.contiguous(), into, out)": "Exchange.apply(gradient.contiguous(), out, into)",
})  # fmt: skip
wrong("a rank without rows has no graph", "nothing more: its step is over", {
    "    back = Exchange": "    found = found if len(found) else found.detach()\n    back = Exchange",
})  # fmt: skip
wrong("x is scaled in place", "changes `x`", {"    ranks, k = ": "    x.data *= 2\n    ranks, k = "})
wrong("results of detached experts", "the gradient of", {"network(came[mine])": "network(came[mine]).detach()"})
wrong(
    "the first expert alone",
    "not what the exercise says",
    {"    order = ": "    weights = weights * (torch.arange(k) == 0)\n    order = "},
)
wrong(
    "flat",
    "has not the shape of x",
    {"    return torch.zeros_like(x)": "    return (1 * torch.zeros_like(x))[:, :1]\n    return torch.zeros_like(x)"},
)
wrong(
    "nothing comes back",
    "is no tensor",
    {"    return torch.zeros_like(x).index_add": "    torch.zeros_like(x).index_add"},
)
