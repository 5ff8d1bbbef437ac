import math


import torch


import torch.distributed as dist


from torch.nn.functional import cross_entropy


from utils import launch


from checks.labs import context_parallelism as check


def merge(blocks):
    ### BEGIN SOLUTION
    outs = torch.stack([out for out, _ in blocks])
    lses = torch.stack([lse for _, lse in blocks])
    unseen = lses == -math.inf
    lse = lses.logsumexp(0)
    weights = (lses - lse).exp().masked_fill(unseen, 0.0)
    outs = outs.to(lses.dtype).masked_fill(unseen[..., None], 0.0)
    return (weights[..., None] * outs).sum(0).to(blocks[0][0].dtype), lse


def ring_attention(q, k, v, causal, attend, merge):
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    keys, found = [k.contiguous(), v.contiguous()], None
    for step in range(ranks):
        coming, messages = [torch.empty_like(one) for one in keys], []
        if step < ranks - 1:
            messages += [dist.isend(one, (rank + 1) % ranks) for one in keys]
            messages += [dist.irecv(one, (rank - 1) % ranks) for one in coming]
        origin = (rank - step) % ranks
        if origin <= rank or not causal:
            mine = attend(q, *keys, causal and origin == rank)
            found = merge(found, mine)
        for message in messages:
            message.wait()
        keys = coming
    return found


def my_tokens(lengths, rank, ranks):
    ### BEGIN SOLUTION
    places, start = [], 0
    for length in lengths:
        pieces = torch.arange(start, start + length).chunk(2 * ranks)
        places += [pieces[rank], pieces[2 * ranks - 1 - rank]]
        start += length
    return torch.cat(places)


def together(parts, lengths):
    ### BEGIN SOLUTION
    order = torch.cat([my_tokens(lengths, rank, len(parts)) for rank in range(len(parts))])
    return torch.cat(parts, 1)[:, order.argsort()]


def training_step(model, tokens, prompts, places):
    ### BEGIN SOLUTION
    position = torch.arange(tokens.shape[1])
    labels = tokens.roll(-1, 1)
    labels[:, -1] = -100
    labels[position + 1 < prompts[:, None]] = -100
    tokens, labels = tokens[:, places], labels[:, places]
    count = (labels != -100).sum()
    dist.all_reduce(count)

    speeds = 10_000.0 ** (-torch.arange(model.pairs) / model.pairs)
    angles = places[:, None] * speeds
    scores = model(tokens, angles.cos(), angles.sin())
    loss = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / count
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total
