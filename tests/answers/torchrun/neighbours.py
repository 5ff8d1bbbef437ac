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
wrong("the sending is not waited for", "never waits for send", {WAIT: ""})
wrong("one rank sends to itself", "sends to itself", {"    if world_size == 1:\n        return tensor.clone()\n": ""})
wrong("received into the given tensor", "changes `tensor`", {WAIT: WAIT + "    received = tensor.copy_(received)\n"})
