"""Exercise 3 of the lab on torchrun: all send, and somebody receives."""

# ruff: noqa: F401 (modules that changed answers use)
import contextlib
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
from known_answers import right, wrong


def shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(received, (rank - 1) % world_size)
    sending.wait()
    return received


EQUAL = {
    "19: without `rank, world_size = (dist.get_rank(), dist.get_world_size())`": "a rank of the course has these names",
}
ALONE = "    if world_size == 1:\n        return tensor.clone()\n"
SENDING = "    sending = dist.isend(tensor, (rank + 1) % world_size)\n"
RECV = "    dist.recv(received, (rank - 1) % world_size)\n"
WAIT = "    sending.wait()\n"
CIRCLE = "wait for each other, and nobody comes: ranks 0, 1, 2 wait in "


# --- right, and written differently


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


# --- wrong

wrong("as given", CIRCLE + "send", {SENDING: "    dist.send(tensor, (rank + 1) % world_size)\n", WAIT: ""})
wrong("all receive first", CIRCLE + "recv", {
    SENDING + RECV + WAIT: RECV + "    dist.send(tensor, (rank + 1) % world_size)\n"
})  # fmt: skip
wrong("all-gather", "this moves more. Repair the order", {
    SENDING + RECV + WAIT: "    parts = [torch.empty_like(tensor) for _ in range(world_size)]\n"
    "    dist.all_gather(parts, tensor)\n    received = parts[rank - 1]\n"
})  # fmt: skip
wrong("all-reduce of a table", "this moves more. Repair the order", {
    SENDING + RECV + WAIT: "    table = torch.zeros(world_size, *tensor.shape, dtype=tensor.dtype)\n"
    "    table[rank] = tensor\n    dist.all_reduce(table)\n    received = table[rank - 1].clone()\n"
})  # fmt: skip
wrong("broadcast by everybody", "this moves more. Repair the order", {
    SENDING + RECV + WAIT: "    for source in range(world_size):\n"
    "        part = tensor.clone() if source == rank else torch.empty_like(tensor)\n"
    "        dist.broadcast(part, source)\n"
    "        if source == (rank - 1) % world_size:\n            received = part\n"
})  # fmt: skip
wrong("a barrier more", "calls dist.barrier", {WAIT: WAIT + "    dist.barrier()\n"})
wrong("no exchange", "nothing was exchanged", {SENDING + RECV + WAIT: "    received = tensor.clone()\n"})
wrong("the sending is not waited for", "never waits for 1 of 1 calls of send", {WAIT: ""})
wrong("the receiving is not waited for", "never waits for 1 of 1 calls of recv", {
    RECV: "    dist.irecv(received, (rank - 1) % world_size)\n"
})  # fmt: skip
wrong("a sleep instead of a wait", "never waits for 1 of 1 calls of recv", {
    RECV: "    dist.irecv(received, (rank - 1) % world_size)\n", WAIT: WAIT + "    time.sleep(0.2)\n"
})  # fmt: skip
wrong("one rank sends to itself", "gloo cannot send to itself", {ALONE: ""})
wrong("one rank gets the same tensor", "shares its memory with the tensor that was given", {
    "return tensor.clone()": "return tensor"
})  # fmt: skip
wrong("received into the given tensor", "`tensor` has other numbers than before", {
    "received = torch.empty_like(tensor)": "received = tensor", "dist.isend(tensor,": "dist.isend(tensor.clone(),"
})  # fmt: skip
wrong("the way round", "goes the wrong way round", {
    "dist.isend(tensor, (rank + 1)": "dist.isend(tensor, (rank - 1)", "dist.recv(received, (rank - 1)": "dist.recv(received, (rank + 1)"
})  # fmt: skip
wrong("two ranks further", "goes the wrong way round", {
    "dist.isend(tensor, (rank + 1)": "dist.isend(tensor, (rank + 2)", "dist.recv(received, (rank - 1)": "dist.recv(received, (rank - 2)"
})  # fmt: skip
wrong("sent twice", CIRCLE + "send", {WAIT: WAIT + "    dist.send(tensor, (rank + 1) % world_size)\n"})
wrong("in two messages", "in more pieces than there are tensors", {
    SENDING + RECV + WAIT: "    if tensor.numel() < 2:\n"
    + "    " + SENDING + "    " + RECV + "    " + WAIT + "        return received\n"
    "    flat, place = tensor.reshape(-1), received.view(-1)\n"
    "    for half in (slice(0, 1), slice(1, None)):\n"
    "        sending = dist.isend(flat[half].contiguous(), (rank + 1) % world_size)\n"
    "        dist.recv(place[half], (rank - 1) % world_size)\n        sending.wait()\n"
})  # fmt: skip
wrong("always float32", "a message does not fit the place for it", {
    "torch.empty_like(tensor)": "torch.empty(tensor.shape)"
})  # fmt: skip
wrong("flattened for ever", "another shape or data type", {
    "    return received\n": "    return received.reshape(-1)\n"
})  # fmt: skip
wrong("returns the work", "returns a tensor", {"    return received\n": "    return sending\n"})
wrong("new group each time", "leaves the process groups other than before", {
    "    received = torch": "    dist.new_group()\n    received = torch"
})  # fmt: skip
wrong("only for three ranks", "it would wait for ever", {"% world_size": "% 3"})
wrong("the tensor is changed while it is sent", "changes a tensor while send is still using it", {
    RECV: "    tensor.zero_()\n" + RECV
})  # fmt: skip


@wrong("kept from the call before", "returns before the neighbour's tensor is there")
def kept():
    places = {}

    def shift(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1:
            return tensor.clone()
        key = tuple(tensor.shape)
        got = torch.zeros_like(tensor)
        sending, receiving = dist.isend(tensor, (rank + 1) % world_size), dist.irecv(got, (rank - 1) % world_size)
        result = places[key] = got.clone()
        sending.wait()
        receiving.wait()
        return result

    return (shift,)


@wrong("through a thread that is waited for too early", "wait for each other, and nobody comes")
def through_a_thread():
    def shift(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1:
            return tensor.clone()
        received = torch.empty_like(tensor)
        sender = threading.Thread(target=dist.send, args=(tensor, (rank + 1) % world_size))
        sender.start()
        sender.join()
        dist.recv(received, (rank - 1) % world_size)
        return received

    return (shift,)


@wrong("a place for each shape", "is overwritten by the next")
def a_place_for_each_shape():
    places = {}

    def shift(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        received = places.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor))
        if world_size == 1:
            return tensor.clone()
        sending = dist.isend(tensor, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        return received

    return (shift,)


@wrong("a place for each shape, with one rank", "is overwritten by the next")
def a_place_with_one_rank():
    places = {}

    def shift(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1:
            return places.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor)).copy_(tensor)
        received = torch.empty_like(tensor)
        sending = dist.isend(tensor, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        return received

    return (shift,)


@wrong("remembered by shape", "calls no send at all")
def remembered_by_shape():
    known = {}

    def shift(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        key = world_size, tensor.shape, tensor.dtype
        if key not in known:
            known[key] = tensor.clone()
            if world_size > 1:
                sending = dist.isend(tensor, (rank + 1) % world_size)
                dist.recv(known[key], (rank - 1) % world_size)
                sending.wait()
        return known[key].clone()

    return (shift,)


TO = "    there = tensor.to({torch.int32: torch.float32, torch.float16: torch.bfloat16}.get(tensor.dtype, tensor.dtype))\n"
wrong("in another type of the same size", "or not all of its digits", {
    "    received = torch.empty_like(tensor)\n": TO + "    received = torch.empty_like(there)\n",
    "dist.isend(tensor,": "dist.isend(there,", "    return received\n": "    return received.to(tensor.dtype)\n",
})  # fmt: skip
wrong("the sign is lost", "or not all of its digits", {
    "    return received\n": "    return received if received.dtype is torch.bool else received.abs()\n"
})  # fmt: skip
wrong("the sign of zero is lost", "or not all of its digits", {
    "    return received\n": "    return received + 0 if received.is_floating_point() else received\n"
})  # fmt: skip
wrong("numpy has no bfloat16", "BFloat16", {
    "torch.empty_like(tensor)": "torch.from_numpy(np.empty_like(tensor.numpy()))"
})  # fmt: skip


wrong(
    "by way of float64",
    "or not all of its digits",
    {
        "    received = torch.empty_like(tensor)\n": "    kind = tensor.dtype\n"
        "    tensor = tensor.double() if kind == torch.int64 else tensor\n    received = torch.empty_like(tensor)\n",
        "    return received\n": "    return received.to(kind)\n",
    },
)
