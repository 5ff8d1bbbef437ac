"""Exercise 2 of the lab on context parallelism: a ring. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("keys and values stacked, a batch of messages")
def stacked():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        now, found = torch.stack((k, v)), None
        for step in range(ranks):
            works = []
            if step + 1 < ranks:
                new = torch.zeros_like(now)
                messages = [dist.P2POp(dist.isend, now, (rank + 1) % ranks)]
                messages.append(dist.P2POp(dist.irecv, new, (rank - 1) % ranks))
                works = dist.batch_isend_irecv(messages)
            if not causal or step <= rank:
                found = merge(found, attend(q, now[0], now[1], causal and step == 0))
            [work.wait() for work in works]
            if works:
                now = new
        return list(found)

    return (ring_attention,)


@right("no rank sends what nobody needs")
def no_way_round():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if not causal:
            before, after, steps = (rank - 1) % ranks, (rank + 1) % ranks, ranks
        else:
            before, after, steps = rank - 1, rank + 1, rank + 1
        found, k, v = None, k.contiguous(), v.contiguous()
        for step in range(steps):
            works, coming = [], None
            if after < ranks and ranks != 1 and (causal or step < ranks - 1):
                works += [dist.isend(k, after), dist.isend(v, after)]
            if step < steps - 1:
                coming = [torch.empty(one.shape, dtype=one.dtype) for one in (k, v)]
                works += [dist.irecv(one, before) for one in coming]
            found = merge(found, attend(q, k, v, causal and step == 0))
            for work in works:
                work.wait()
            if coming:
                k, v = coming
        return found

    return (ring_attention,)


SENDS = "            messages += [dist.isend(one, (rank + 1) % ranks) for one in keys]\n"
ATTEND = "        origin = (rank - step) % ranks\n"
WAIT = "        for message in messages:\n            message.wait()\n"
wrong("all ranks send first", "waits", {
    SENDS: "            for one in keys:\n                dist.send(one, (rank + 1) % ranks)\n",
})  # fmt: skip
wrong("waits before it computes", "not on its way", {ATTEND: WAIT + ATTEND})
wrong(
    "sends are forgotten",
    "never waits for send",
    {SENDS: SENDS.replace("messages += ", "").replace("            [", "            [", 1)},
)
wrong("into the same tensors", "into which a block is being received", {
    "[k.contiguous(), v.contiguous()], None": "[k.contiguous().clone(), v.contiguous().clone()], None",
    "[torch.empty_like(one) for one in keys]": "list(keys)",
})  # fmt: skip


@wrong("all keys at once", "calls all_gather")
def gathered():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, found = dist.get_rank(), None
        blocks = [[torch.empty_like(one.contiguous()) for _ in range(dist.get_world_size())] for one in (k, v)]
        for parts, own in zip(blocks, (k, v), strict=True):
            dist.all_gather(parts, own.contiguous())
        for origin, keys in enumerate(zip(*blocks, strict=True)):
            if origin <= rank or not causal:
                found = merge(found, attend(q, *keys, causal and origin == rank))
        return found

    return (ring_attention,)


@right("side by side in slots of one tensor; what is only passed on is waited for at once")
def slots():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        room, found = torch.empty(2, *k.shape[:-1], 2 * k.shape[-1], dtype=k.dtype), None
        room[0] = torch.cat((k, v), -1)
        for step in range(ranks):
            now, new, works = room[step % 2], room[1 - step % 2], []
            if step < ranks - 1:
                works = [dist.irecv(new, (rank - 1) % ranks), dist.isend(now, (rank + 1) % ranks)]
            if step <= rank or not causal:
                found = merge(found, attend(q, *now.chunk(2, -1), causal and step == 0))
            for work in works:
                work.wait()
        return found[0].clone(), found[1]

    return (ring_attention,)
