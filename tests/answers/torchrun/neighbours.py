"""Exercise 3 of the lab on torchrun: all send, and somebody receives. What is not here is in the official solution."""

import contextlib

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("in a batch")
def in_a_batch():
    def shift(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        got = tensor.clone()
        if world_size > 1:
            both = [
                dist.P2POp(dist.isend, tensor, (rank + 1) % world_size),
                dist.P2POp(dist.irecv, got, (rank - 1) % world_size),
            ]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        return got

    return (shift,)


@right("odd and even")
def odd_and_even():
    def shift(tensor):
        me, n = dist.get_rank(), dist.get_world_size()
        if n == 1:
            return torch.clone(tensor)
        got = torch.empty(tensor.shape, dtype=tensor.dtype)
        if me % 2 == 0:
            dist.send(tensor, (me + 1) % n)
            dist.recv(got, (me + n - 1) % n)
        else:
            dist.recv(got, (me + n - 1) % n)
            dist.send(tensor, (me + 1) % n)
        return got

    return (shift,)


@right("rank 0 breaks the circle, with named arguments and a tag")
def rank_0_first():
    def shift(tensor):
        me, n = dist.get_rank(), dist.get_world_size()
        got = torch.zeros_like(tensor)
        if n == 1:
            return got.copy_(tensor)
        steps = [lambda: dist.send(tensor=tensor, dst=(me + 1) % n, tag=7), lambda: dist.recv(got, (me - 1) % n, tag=7)]
        for step in steps if me == 0 else reversed(steps):
            step()
        return got

    return (shift,)


@right("both in the background, and the sender is not named")
def background():
    def shift(tensor):
        group = dist.group.WORLD
        if group.size() == 1:
            return tensor.detach().clone()
        got = torch.empty_like(tensor)
        works = [dist.irecv(got), dist.isend(tensor.clone(), (group.rank() + 1) % group.size())]
        [work.wait() for work in works]
        return got

    return (shift,)


@right("an exit stack waits, and torch's words for ranks of a group")
def exit_stack():
    def shift(tensor):
        n, me = dist.get_world_size(), dist.get_rank()
        return tensor.clone() if n == 1 else exchange(tensor, (me + 1) % n, (me - 1) % n)

    def exchange(tensor, to, from_):
        got = torch.full_like(tensor, 1)
        with contextlib.ExitStack() as stack:
            stack.callback(dist.isend(tensor, group_dst=to).wait)
            dist.recv(got, group_src=from_)
        return got

    return (shift,)


SENDING = "    sending = dist.isend(tensor, (rank + 1) % world_size)\n"
RECV, WAIT = "    dist.recv(received, (rank - 1) % world_size)\n", "    sending.wait()\n"
wrong("as given", "wait in send", {SENDING: "    dist.send(tensor, (rank + 1) % world_size)\n", WAIT: ""})
wrong("all receive first", "wait in recv", {SENDING + RECV + WAIT: RECV + SENDING + WAIT})
wrong("all-gather", "this moves more. Repair the order", {
    SENDING + RECV + WAIT: "    parts = [torch.empty_like(tensor) for _ in range(world_size)]\n"
    "    dist.all_gather(parts, tensor)\n    received = parts[rank - 1]\n"
})  # fmt: skip
wrong("the sending is not waited for", "never waits for send", {WAIT: ""})
wrong("the receiving is not waited for", "never waits for recv", {RECV: RECV.replace("recv(", "irecv(")})
wrong("one rank sends to itself", "Make a copy", {"    if world_size == 1:\n        return tensor.clone()\n": ""})
wrong("one rank gets the same tensor", "shares its memory", {"return tensor.clone()": "return tensor"})
wrong("received into the given tensor", "changes `tensor`", {
    WAIT: WAIT + "    received = tensor.copy_(received)\n"
})  # fmt: skip
wrong("only for three ranks", "wait", {"% world_size": "% 3"})
wrong("one place for each shape", "is overwritten by the next", {
    "def shift(tensor):\n": "PLACES = {}\n\n\ndef shift(tensor):\n",
    "torch.empty_like(tensor)": "PLACES.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor))",
})  # fmt: skip
