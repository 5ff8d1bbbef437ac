"""Exercise 4 of the lab on torchrun: all send, and somebody receives. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

SENDING = "    sending = dist.isend(tensor, (rank + 1) % world_size)\n"
RECV, WAIT = "    dist.recv(received, (rank - 1) % world_size)\n", "    sending.wait()\n"
SEND = SENDING.replace("sending = dist.i", "dist.")
BOTH = SENDING + RECV + WAIT
right("in a batch", {
    BOTH: "    both = [dist.P2POp(dist.isend, tensor, (rank + 1) % world_size),\n"
          "            dist.P2POp(dist.irecv, received, (rank - 1) % world_size)]\n"
          "    for work in dist.batch_isend_irecv(both):\n        work.wait()\n"
})  # fmt: skip
right("odd and even", {
    BOTH: f"    if rank % 2 == 0:\n    {SEND}    {RECV}    else:\n    {RECV}    {SEND}",
    "torch.empty_like(tensor)": "torch.empty(tensor.shape, dtype=tensor.dtype)",
})  # fmt: skip
right("both in the background, and the sender is not named", {
    BOTH: "    works = [dist.irecv(received), dist.isend(tensor.clone(), (rank + 1) % world_size)]\n"
          "    [work.wait() for work in works]\n"
})  # fmt: skip
right("an exit stack waits, and torch's words for ranks of a group", {
    BOTH: "    with __import__('contextlib').ExitStack() as stack:\n"
          "        stack.callback(dist.isend(tensor, group_dst=(rank + 1) % world_size).wait)\n"
          "        dist.recv(received, group_src=(rank - 1) % world_size)\n"
})  # fmt: skip


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


wrong("as given", "wait in send", {SENDING: SEND, WAIT: ""})
wrong("all receive first", "wait in recv", {BOTH: RECV + SENDING + WAIT})
wrong("all-gather", "this moves more. Repair the order", {
    BOTH: "    parts = [torch.empty_like(tensor) for _ in range(world_size)]\n"
          "    dist.all_gather(parts, tensor)\n    received = parts[rank - 1]\n"
})  # fmt: skip
wrong("the sending is not waited for", "never waits for send", {WAIT: ""})
wrong("the receiving is not waited for", "never waits for recv", {RECV: RECV.replace("recv(", "irecv(")})
wrong("one rank sends to itself", "Make a copy", {"    if world_size == 1:\n        return tensor.clone()\n": ""})
wrong("one rank gets the same tensor", "shares its memory", {"return tensor.clone()": "return tensor"})
wrong("received into the given tensor", "changes `tensor`", {WAIT: WAIT + "    received = tensor.copy_(received)\n"})
wrong("only for three ranks", "wait", {"% world_size": "% 3"})
wrong("one place for each shape", "is overwritten by the next", {
    "def shift(tensor):\n": "PLACES = {}\n\n\ndef shift(tensor):\n",
    "torch.empty_like(tensor)": "PLACES.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor))",
})  # fmt: skip
