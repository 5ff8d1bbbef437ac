"""Exercise 2 of the lab on context parallelism: a ring. What is not here is in the official solution."""

from functools import reduce

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


@right("two buffers in one tensor, receive first, with tags, results merged at the end")
def two_buffers():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        buffers = torch.empty(2, k.numel() + v.numel(), dtype=k.dtype)
        buffers[0] = torch.cat([k.flatten(), v.flatten()])
        results = []
        for step in range(ranks):
            now, new = buffers[step % 2], buffers[1 - step % 2]
            works = []
            if step < ranks - 1:
                works.append(dist.irecv(new, src=(rank + ranks - 1) % ranks, tag=step))
                works.append(dist.isend(now, dst=(rank + 1) % ranks, tag=step))
            if step <= rank or not causal:
                keys, values = now[: k.numel()].view(k.shape), now[k.numel() :].view(v.shape)
                results.append(attend(q=q, k=keys, v=values, causal=step == 0 and causal))
            while works:
                works.pop().wait()
        return reduce(merge, results)

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


@right("an online softmax of its own, the last waits at the end, begun ahead of the loop")
def of_its_own():
    def exchange(tensors):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        coming = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in tensors]
        group = dist.group.WORLD
        ops = [dist.P2POp(dist.irecv, one, (rank - 1) % ranks, group) for one in coming]
        ops += [dist.P2POp(dist.isend, one, (rank + 1) % ranks, group) for one in tensors]
        return coming, dist.batch_isend_irecv(ops)

    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        keys = k.contiguous(), v.contiguous()
        if ranks > 1:
            coming, works = exchange(keys)
        out, lse = attend(q, *keys, causal)
        for step in range(1, ranks):
            for work in works:
                work.wait()
            keys = coming
            if step < ranks - 1:
                coming, works = exchange(keys)
            if causal and rank < step:
                continue
            other, more = attend(q, *keys, False)
            largest = torch.maximum(lse, more)
            one, two = (lse - largest).exp(), (more - largest).exp()
            out = (out * one[..., None] + other * two[..., None]) / (one + two)[..., None]
            lse = largest + (one + two).log()
        return out, lse

    return (ring_attention,)


@right("sends are waited for at the very end")
def sends_last():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        keys, sent, found = (k.clone(memory_format=torch.contiguous_format), v.contiguous()), [], None
        for origin in [(rank - step) % ranks for step in range(ranks)]:
            last = origin == (rank + 1) % ranks
            if not last:
                sent += [(one, dist.isend(one, (rank + 1) % ranks)) for one in keys]
                new = tuple(map(torch.empty_like, keys))
                works = [dist.irecv(one, (rank - 1) % ranks) for one in new]
            if origin == rank:
                found = attend(q, *keys, causal)
            elif not causal or origin < rank:
                found = merge(found, attend(q, *keys, False))
            if not last:
                for work in works:
                    work.wait()
                keys = new
        for _, work in sent:
            work.wait()
        return found

    return (ring_attention,)


STEP = "        if step < ranks - 1:\n"
SENDS = "            messages += [dist.isend(one, (rank + 1) % ranks) for one in keys]\n"
RECEIVES = "            messages += [dist.irecv(one, (rank - 1) % ranks) for one in coming]\n"
ATTEND = "        origin = (rank - step) % ranks\n"
WAIT = "        for message in messages:\n            message.wait()\n"
NOW = "            for message in messages:\n                message.wait()\n"
wrong("all ranks send first", "waits", {
    SENDS: "            for one in keys:\n                dist.send(one, (rank + 1) % ranks)\n",
})  # fmt: skip
wrong("the first rank sends first, the others receive first", "not on its way", {
    SENDS: "", RECEIVES:
    "            for one, new in zip(keys, coming):\n"
    "                for way in ((dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)):\n"
    "                    way(*((one, (rank + 1) % ranks) if way is dist.send else (new, (rank - 1) % ranks)))\n",
})  # fmt: skip
wrong("waits before it computes", "not on its way", {ATTEND: WAIT + ATTEND})
wrong(
    "waits for what comes, not for what goes",
    "not on its way",
    {ATTEND: "        [one.wait() for one in messages[2:]]\n" + ATTEND},
)
wrong(
    "begins after it has computed",
    "not on its way",
    {SENDS + RECEIVES: "            pass\n", WAIT: STEP + SENDS + RECEIVES + WAIT},
)
wrong(
    "keys ahead, values behind", "not on its way", {ATTEND: "        [one.wait() for one in messages[::2]]\n" + ATTEND}
)
wrong("receives ahead, and sends at once", "calls attend only then", {
    SENDS: "", RECEIVES: RECEIVES + "            for one in keys:\n                dist.send(one, (rank + 1) % ranks)\n",
})  # fmt: skip
wrong("all blocks go home", "more than 2 blocks", {STEP: "        if ranks > 1:\n"})
wrong("every block is looked at, and some is thrown away", "not called once for each block", {
    "        if origin <= rank or not causal:\n": "        if True:\n",
    "            found = merge(found, mine)": "            found = merge(found, mine) if origin <= rank or not causal else found",
})  # fmt: skip
wrong(
    "sends are forgotten",
    "never waits for send",
    {SENDS: SENDS.replace("messages += ", "").replace("            [", "            [", 1)},
)
wrong("nothing is made contiguous", "contiguous", {"[k.contiguous(), v.contiguous()]": "[k, v]"})
wrong("into the same tensors", "into which a block is being received", {
    "[k.contiguous(), v.contiguous()], None": "[k.contiguous().clone(), v.contiguous().clone()], None",
    "[torch.empty_like(one) for one in keys]": "list(keys)",
})  # fmt: skip
wrong(
    "into the arguments",
    "into which a block is being received",
    {"[torch.empty_like(one) for one in keys]": "list(keys)"},
)
wrong("the result alone", "not a pair", {"    return found": "    return found[0][0]"})
wrong(
    "lse is forgotten in the merge",
    "out: not what",
    {"merge(found, mine)": "merge(found, (mine[0], torch.zeros_like(mine[1])))"},
)


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


@wrong("everybody sends to everybody at the start", "another rank than the next one")
def to_everybody():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks, own = dist.get_rank(), dist.get_world_size(), torch.stack((k, v))
        coming = [torch.empty_like(own) for _ in range(ranks)]
        sends = [dist.isend(own, (rank + step) % ranks) for step in range(1, ranks)]
        works = [None] + [dist.irecv(coming[step], (rank - step) % ranks) for step in range(1, ranks)]
        coming[0], found = own, None
        for step in range(ranks):
            if step:
                works[step].wait()
            if step <= rank or not causal:
                found = merge(found, attend(q, *coming[step], causal and step == 0))
        for send in sends:
            send.wait()
        return found

    return (ring_attention,)


@wrong("to the rank in question itself, one step after the other", "another rank than the next one")
def to_the_rank_itself():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks, own = dist.get_rank(), dist.get_world_size(), torch.stack((k, v))
        now, found = own, None
        for step in range(ranks):
            works = []
            if step < ranks - 1:
                new = torch.empty_like(own)
                works = [dist.isend(own, (rank + step + 1) % ranks), dist.irecv(new, (rank - step - 1) % ranks)]
            if step <= rank or not causal:
                found = merge(found, attend(q, *now, causal and step == 0))
            for work in works:
                work.wait()
            now = new if works else None
        return found

    return (ring_attention,)


@wrong("computes with what is coming", "into which a block is being received")
def too_early():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        now, found = torch.stack((k, v)), None
        for step in range(ranks):
            works, new = [], torch.empty_like(now)
            if step < ranks - 1:
                works = [dist.isend(now, (rank + 1) % ranks), dist.irecv(new, (rank - 1) % ranks)]
            if step <= rank or not causal:
                found = merge(found, attend(q, *(new if works else now), causal and step == 0))
            for work in works:
                work.wait()
            now = new
        return found

    return (ring_attention,)


@wrong("a rank leaves when it has nothing more to look at", "which has returned")
def leaves_early():
    def ring_attention(q, k, v, causal, attend, merge):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        now, found = torch.stack((k, v)), None
        for step in range(ranks):
            if causal and step > rank:
                break
            works, new = [], torch.empty_like(now)
            if step < ranks - 1:
                works = [dist.isend(now, (rank + 1) % ranks), dist.irecv(new, (rank - 1) % ranks)]
            found = merge(found, attend(q, *now, causal and step == 0))
            for work in works:
                work.wait()
            now = new
        return found

    return (ring_attention,)


wrong("the other way round the ring", "another rank than the next one", {
    "dist.isend(one, (rank + 1) % ranks)": "dist.isend(one, (rank - 1) % ranks)",
    "dist.irecv(one, (rank - 1) % ranks)": "dist.irecv(one, (rank + 1) % ranks)",
    "origin = (rank - step) % ranks": "origin = (rank + step) % ranks",
})  # fmt: skip
wrong("room for float32 only", "does not fit the place", {
    "torch.empty_like(one) for one in keys": "torch.empty(one.shape) for one in keys"
})  # fmt: skip


@right("an object for the ring, sends and receives in turns by parity")
def an_object():
    class Ring:
        def __init__(self):
            self.rank, self.size, self.ops = dist.get_rank(), dist.get_world_size(), []

        def pass_on(self, tensor):
            new = torch.empty_like(tensor)
            send = dist.P2POp(dist.isend, tensor, (self.rank + 1) % self.size)
            receive = dist.P2POp(dist.irecv, new, (self.rank - 1) % self.size)
            self.ops += [send, receive] if self.rank % 2 == 0 else [receive, send]
            return new

        def begin(self):
            self.works, self.ops = dist.batch_isend_irecv(self.ops), []

        def wait(self):
            for work in self.works:
                work.wait()

    def ring_attention(q, k, v, causal, attend, merge):
        ring, out, lse = Ring(), None, None
        k, v = k.contiguous(), v.contiguous()
        for step in range(ring.size):
            if step + 1 != ring.size:
                later = ring.pass_on(k), ring.pass_on(v)
                ring.begin()
            if not causal or step <= ring.rank:
                more, own = attend(q, k, v, causal and step == 0)
                if out is None:
                    out, lse = more, own
                else:
                    out = out - torch.sigmoid(own - lse)[..., None] * (out - more)
                    lse = lse - torch.nn.functional.logsigmoid(lse - own)
            if step + 1 != ring.size:
                ring.wait()
                k, v = later
        return out, lse

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
