"""Exercise 1 of the lab on all-reduces: all ranks learn all lengths. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("in batches, into one tensor")
def in_batches():
    def check_length(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        lengths = torch.zeros(size, dtype=torch.int64)
        lengths[rank] = tensor.numel()
        places = lengths.split(1)
        for step in range(size - 1):
            pair = [
                dist.P2POp(dist.isend, places[(rank - step) % size], (rank + 1) % size),
                dist.P2POp(dist.irecv, places[(rank - step - 1) % size], (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()
        if lengths.min() != lengths.max():
            raise ValueError(f"all tensors must have the same length, but the ranks have {lengths.tolist()}")

    return (check_length,)


@right("blocking calls: rank 0 breaks the circle")
def rank_0_breaks_the_circle():
    def check_length(tensor):
        me, size = dist.get_rank(), dist.get_world_size()
        known = {me: len(tensor)}
        latest = torch.tensor(len(tensor))
        for step in range(1, size):
            incoming = torch.tensor(0)
            if me == 0:
                dist.recv(incoming, size - 1)
                dist.send(latest, 1)
            else:
                dist.send(latest, (me + 1) % size)
                dist.recv(incoming, me - 1)
            latest = incoming
            known[(me - step) % size] = int(latest)
        if len(set(known.values())) > 1:
            raise ValueError(f"lengths {[known[one] for one in range(size)]}")

    return (check_length,)


SEND = "        sending = dist.isend(lengths[(rank - step) % size], (rank + 1) % size)\n"
RECEIVE = "        dist.recv(lengths[(rank - step - 1) % size], (rank - 1) % size)\n"
WAIT = "        sending.wait()\n"
right("in float64, and all messages are waited for at the end", {
    "[torch.tensor([tensor.numel()]) for _ in range(size)]": "[torch.tensor([float(len(tensor))]).double() for _ in range(size)]\n    works = []",
    SEND + RECEIVE + WAIT: SEND.replace("sending = ", "works.append(").rstrip() + ")\n" + RECEIVE,
    "    everyone = [length.item()": "    [work.wait() for work in works]\n    everyone = [int(length)",
})  # fmt: skip
wrong("a collective", "calls all_gather, and send and recv is all", {
    SEND + RECEIVE + WAIT: "        dist.all_gather(lengths, lengths[rank].clone())\n"
})  # fmt: skip
wrong("one step too many", "sends other messages than N − 1", {"range(size - 1)": "range(size if size > 1 else 0)"})
wrong("never waits", "never waits for", {SEND + RECEIVE + WAIT: SEND + RECEIVE})
wrong("raises too early", "it would wait for ever", {
    RECEIVE + WAIT: RECEIVE + WAIT + "        if lengths[(rank - step - 1) % size] != tensor.numel():\n"
    "            raise ValueError('other')\n"
})  # fmt: skip
wrong("the tensor is filled", "changes `tensor`", {"    everyone = [": "    tensor.fill_(0)\n    everyone = ["})
