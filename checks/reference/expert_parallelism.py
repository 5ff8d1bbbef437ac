import itertools


import torch


import torch.distributed as dist


from utils import launch


from checks.labs import expert_parallelism as check


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, out, into):
        ctx.way = out, into
        result = rows.new_empty(sum(into), rows.shape[1])
        dist.all_to_all_single(result, rows.contiguous(), into, out)
        return result

    @staticmethod
    def backward(ctx, gradient):
        out, into = ctx.way
        return Exchange.apply(gradient.contiguous(), into, out), None, None


def moe(x, chosen, weights, experts):
    ### BEGIN SOLUTION
    ranks, k = dist.get_world_size(), chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=ranks * len(experts))
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    theirs = theirs.view(ranks, -1)  # [from which rank, for which of my experts]
    out, into = counts.view(ranks, -1).sum(1).tolist(), theirs.sum(1).tolist()
    came = Exchange.apply(x[order // k], out, into)
    expert = torch.arange(len(experts)).repeat(ranks).repeat_interleave(theirs.flatten())
    found = torch.zeros_like(came)
    for number, network in enumerate(experts):
        mine = (expert == number).nonzero().flatten()
        found = found.index_copy(0, mine, network(came[mine]))
    back = Exchange.apply(found, into, out)
    return torch.zeros_like(x).index_add(0, order // k, back * weights.flatten()[order, None])


def route(logits, bias, k, nodes, limit):
    ### BEGIN SOLUTION
    scores = logits.sigmoid()
    biased = (scores + bias).detach()
    best = biased.view(len(logits), nodes, -1).topk(2).values.sum(-1)  # [tokens, nodes]
    allowed = torch.zeros_like(best).scatter(1, best.topk(limit).indices, 1).bool()
    allowed = allowed.repeat_interleave(len(bias) // nodes, dim=1)
    chosen = biased.masked_fill(~allowed, -torch.inf).topk(k).indices
    weights = scores.gather(1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True)


def update(bias, chosen, speed):
    ### BEGIN SOLUTION
    load = torch.bincount(chosen.flatten(), minlength=len(bias)).double()
    return bias + speed * (load.mean() - load).sign()


def finish_gradients(dense, experts, mesh, limit):
    ### BEGIN SOLUTION
    for parameters, group in ((dense, None), (experts, mesh.get_group("copies"))):
        for one in parameters:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
            dist.all_reduce(one.grad, group=group)
            one.grad /= dist.get_world_size()
    squares = sum(one.grad.square().sum() for one in experts)
    dist.all_reduce(squares, group=mesh.get_group("experts"))
    norm = (squares + sum(one.grad.square().sum() for one in dense)).sqrt()
    for one in (*dense, *experts):
        one.grad *= min(1, limit / norm)
    return norm


def place(together, nodes):
    ### BEGIN SOLUTION
    rows = together.tolist()
    experts, size, load = len(rows), len(rows) // nodes, [sum(row) for row in rows]
    groups = [list(range(node * size, (node + 1) * size)) for node in range(nodes)]

    def received(group):
        return sum(load[e] for e in group) - sum(rows[a][b] for a, b in itertools.combinations(group, 2))

    better = True
    while better:
        better = False
        for one, two in itertools.combinations(groups, 2):
            worse = max(received(one), received(two))
            for i, j in itertools.product(range(size), repeat=2):
                one[i], two[j] = two[j], one[i]
                now = max(received(one), received(two))
                if now < worse:
                    worse, better = now, True
                else:
                    one[i], two[j] = two[j], one[i]
    return [next(n for n in range(nodes) if e in groups[n]) for e in range(experts)]
