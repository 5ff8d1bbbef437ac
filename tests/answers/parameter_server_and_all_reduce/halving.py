"""Exercise 3 of the lab on all-reduces: halves of halves, and back. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

SEND, RECEIVE = "        sending = dist.isend(give, partner)\n", "        dist.recv(buffer[: len(keep)], partner)\n"
ADD, COPY = "        keep += buffer[: len(keep)]\n", "        dist.recv(give, partner)\n"
PLACE = "    buffer = tensor.new_empty(len(tensor) if extra"
NEAR = {
    "[], tensor, power // 2": "[], tensor, 1",
    "while distance > 0": "while distance < power",
    "distance // 2": "distance * 2",
}
right(
    "the nearest partner first, and it returns the tensor",
    {**NEAR, "        return\n    extra": "        return tensor\n    extra"},
)
right("the upper half is kept by the lower rank, in batches", {
    "if rank < partner": "if rank > partner",
    SEND + RECEIVE + "        sending.wait()\n": "        pair = [dist.P2POp(dist.irecv, buffer[: len(keep)], partner), "
    "dist.P2POp(dist.isend, give, partner)]\n        [work.wait() for work in dist.batch_isend_irecv(pair)]\n",
})  # fmt: skip


@right("calls itself, and whole chunks")
def calls_itself():
    def exchange(outgoing, incoming, partner):
        if outgoing.numel() and dist.get_rank() < partner:
            dist.send(outgoing, partner)
        if incoming.numel():
            dist.recv(incoming, partner)
        if outgoing.numel() and dist.get_rank() > partner:
            dist.send(outgoing, partner)

    def reduce(tensor, edges, first, count, place):
        """Chunks first to first + count are this rank's and its partners'."""
        rank, half = dist.get_rank(), count // 2
        if half == 0:
            return
        upper = rank & half
        mine, theirs = (first + half, first) if upper else (first, first + half)
        cut = lambda begin: tensor[edges[begin] : edges[begin + half]]  # noqa: E731
        incoming = place[: cut(mine).numel()]
        exchange(cut(theirs), incoming, rank ^ half)
        cut(mine).add_(incoming)
        reduce(tensor, edges, mine, half, place)
        exchange(cut(mine), cut(theirs), rank ^ half)

    def halving_all_reduce(tensor):
        rank, size, length = dist.get_rank(), dist.get_world_size(), len(tensor)
        power = 1
        while 2 * power <= size:
            power *= 2
        if rank >= power:
            dist.send(tensor, rank - power)
            dist.recv(tensor, rank - power)
            return
        per_chunk = -(-length // power)
        edges = [min(number * per_chunk, length) for number in range(power + 1)]
        has_guest = rank + power in range(size)
        place = torch.empty_like(tensor if has_guest else tensor[: edges[power // 2]])
        if has_guest:
            dist.recv(place, rank + power)
            tensor.copy_(torch.add(tensor, place, out=place))
        reduce(tensor, edges, 0, power, place)
        if has_guest:
            dist.send(tensor, rank + power)

    return (halving_all_reduce,)


wrong("whole tensors", "more than half of the tensor is sent in a round", {
    "partner, halves = rank ^ distance, part.tensor_split(2)": "partner, halves = rank ^ distance, (tensor, tensor)",
    PLACE: "    buffer = torch.empty_like(tensor)\n    _ = (len(tensor) if extra", "reversed(rounds)": "()",
})  # fmt: skip
wrong("nobody waits for a send", "never waits for", {RECEIVE + "        sending.wait()\n": RECEIVE})
wrong("irecv is not waited for", "never waits for", {COPY: "        dist.irecv(give, partner)\n"})
wrong(
    "all send first",
    "wait in send",
    {SEND + RECEIVE + "        sending.wait()\n": "        dist.send(give, partner)\n" + RECEIVE},
)
wrong("a whole copy", "add in place (chunk += received), copy nothing", {
    PLACE: "    buffer = tensor.new_empty(len(tensor) if True"
})  # fmt: skip
