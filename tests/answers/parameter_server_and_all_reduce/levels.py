"""Exercise 4 of the lab on all-reduces: rings inside the nodes, and rings between them."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


def around(chunks, members, first, add):
    me, size = members.index(dist.get_rank()), len(members)
    buffer = torch.empty_like(chunks[0])
    for step in range(size - 1):
        outgoing, target = chunks[(first - step) % size], chunks[(first - step - 1) % size]
        incoming = buffer[: len(target)] if add else target
        sending = dist.isend(outgoing, members[(me + 1) % size])
        dist.recv(incoming, members[me - 1])
        sending.wait()
        if add:
            target += incoming


def hierarchical_all_reduce(tensor, nodes, per_node):
    node, local = divmod(dist.get_rank(), per_node)
    inside = [node * per_node + k for k in range(per_node)]
    partners = [n * per_node + local for n in range(nodes)]
    shares = tensor.tensor_split(per_node)
    chunks = shares[(local + 1) % per_node].tensor_split(nodes)
    around(shares, inside, local, add=True)
    around(chunks, partners, node, add=True)
    around(chunks, partners, node + 1, add=False)
    around(shares, inside, local + 1, add=False)


EQUAL = {
    "7: around with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "it is called four times, and so switched back",
}
FIRST = "    around(shares, inside, local, add=True)\n"
BETWEEN = "    around(chunks, partners, node, add=True)\n    around(chunks, partners, node + 1, add=False)\n"
LAST = "    around(shares, inside, local + 1, add=False)"
SHARES = "    shares = tensor.tensor_split(per_node)\n"
CHUNKS = "    chunks = shares[(local + 1) % per_node].tensor_split(nodes)\n"


# --- right, and written differently


@right("everybody sends each share straight to the rank that adds it up")
def straight():
    def add_up(parts, members):
        size, me = len(members), members.index(dist.get_rank())
        place = torch.empty_like(parts[me])
        for distance in range(1, size):
            sending = dist.isend(parts[(me + distance) % size], members[(me + distance) % size])
            dist.recv(place, members[(me - distance) % size])
            sending.wait()
            parts[me].add_(place)

    def hand_out(parts, members):
        size, me = len(members), members.index(dist.get_rank())
        for distance in range(1, size):
            sending = dist.isend(parts[me], members[(me + distance) % size])
            dist.recv(parts[(me - distance) % size], members[(me - distance) % size])
            sending.wait()

    def hierarchical_all_reduce(tensor, nodes, per_node):
        node, local = divmod(dist.get_rank(), per_node)
        my_node = list(range(node * per_node, (node + 1) * per_node))
        like_me = list(range(local, nodes * per_node, per_node))
        shares = tensor.tensor_split(per_node)
        parts = shares[local].tensor_split(nodes)
        add_up(shares, my_node)
        add_up(parts, like_me)
        hand_out(parts, like_me)
        hand_out(shares, my_node)

    return (hierarchical_all_reduce,)


@right("a class for a ring, which runs to the left")
def to_the_left():
    class Ring:
        def __init__(self, members):
            self.size, self.me = len(members), members.index(dist.get_rank())
            self.to, self.source = members[self.me - 1], members[(self.me + 1) % self.size]

        def turn(self, parts, first, place=None):
            for step in range(self.size - 1):
                mine, theirs = parts[(first + step) % self.size], parts[(first + step + 1) % self.size]
                receiving = dist.irecv(theirs if place is None else place[: theirs.numel()], self.source)
                dist.isend(mine, self.to).wait()
                receiving.wait()
                if place is not None:
                    torch.add(theirs, place[: theirs.numel()], out=theirs)

    def hierarchical_all_reduce(tensor, nodes, per_node):
        rank = dist.get_rank()
        inside = Ring([rank - rank % per_node + one for one in range(per_node)])
        across = Ring([rank % per_node + one * per_node for one in range(nodes)])
        parts = tensor.split([(len(tensor) + k) // per_node for k in range(per_node)])
        place = tensor.new_zeros(max(map(len, parts)))
        inside.turn(parts, inside.me, place)
        mine = parts[inside.me - 1]
        pieces = mine.split([(len(mine) + k) // nodes for k in range(nodes)])
        across.turn(pieces, across.me, place)
        across.turn(pieces, across.me - 1)
        inside.turn(parts, inside.me - 1)

    return (hierarchical_all_reduce,)


@right("between the nodes all at once, in batches; one place for both")
def batches():
    def exchange(mine, to, theirs, source):
        pairs = [dist.P2POp(dist.isend, mine, to), dist.P2POp(dist.irecv, theirs, source)]
        for work in dist.batch_isend_irecv(pairs):
            work.wait()

    def hierarchical_all_reduce(tensor, nodes, per_node):
        rank = dist.get_rank()
        place = torch.empty(-(-len(tensor) // per_node), dtype=tensor.dtype)
        for inner, stride, count in ((True, 1, per_node), (False, per_node, nodes)):
            me = rank // stride % count
            base = rank - me * stride
            whole = tensor if inner else shares[(rank % per_node + 1) % per_node]
            parts = whole.tensor_split(count)
            if inner:
                shares = parts
            to, source = base + (me + 1) % count * stride, base + (me - 1) % count * stride
            for step in range(count - 1):
                target = parts[(me - step - 1) % count]
                exchange(parts[(me - step) % count], to, place[: len(target)], source)
                target += place[: len(target)]
            for step in range(0 if inner else count - 1):
                exchange(parts[(me - step + 1) % count], to, parts[(me - step) % count], source)
        local, first = rank % per_node, rank - rank % per_node
        for step in range(per_node - 1):
            to, source = first + (local + 1) % per_node, first + (local - 1) % per_node
            exchange(shares[(local - step + 1) % per_node], to, shares[(local - step) % per_node], source)

    return (hierarchical_all_reduce,)


# --- wrong: phases

wrong("the phase between the nodes is missing", "the phase between the nodes is missing", {BETWEEN: ""})
wrong("half of the phase between", "does the last phase hand all finished chunks out?", {
    "    around(chunks, partners, node + 1, add=False)\n": ""
})  # fmt: skip
wrong("the last phase is missing", "does the last phase hand all finished chunks out?", {LAST: "    return"})
wrong("another share is exchanged", "the share that they exchange must be the one that they have finished", {
    "shares[(local + 1) % per_node]": "shares[local]"
})  # fmt: skip
wrong("the last shares are lost", "the last elements are not added", {
    SHARES: "    shares = tensor[: len(tensor) // per_node * per_node].tensor_split(per_node)\n"
})  # fmt: skip
wrong("nodes dealt like cards", "add up inside the node first", {
    "node, local = divmod(dist.get_rank(), per_node)": "local, node = divmod(dist.get_rank(), nodes)",
    "node * per_node + k": "k * nodes + node", "n * per_node + local": "local * nodes + n",
})  # fmt: skip
wrong("two ranks a node always", "The case: 6 ranks, nodes: 2, ranks per node: 3", {
    "    node, local": "    nodes, per_node = nodes * per_node // min(per_node, 2), min(per_node, 2)\n    node, local"
})  # fmt: skip
wrong("in float32", "times what rounding explains", {
    "target += incoming": "target.copy_((target.float() + incoming.float()) if target.is_floating_point() else target + incoming)"
})  # fmt: skip


# --- wrong: who sends what to whom

wrong("a flat ring", "this is one flat ring through all ranks", {
    SHARES + CHUNKS + FIRST + BETWEEN + LAST: "    everybody, rank = list(range(nodes * per_node)), dist.get_rank()\n"
    "    chunks = tensor.tensor_split(len(everybody))\n    around(chunks, everybody, rank, add=True)\n"
    "    around(chunks, everybody, rank + 1, add=False)"
})  # fmt: skip
wrong("between the nodes first", "add up inside the node first", {
    CHUNKS + FIRST + BETWEEN: "    chunks = tensor.tensor_split(nodes)\n" + BETWEEN + FIRST
})  # fmt: skip
wrong("everything inside twice", "sends inside its node more than it should", {LAST: LAST + "\n" + LAST})
wrong("leaders carry all", "carries more than its share between the nodes", {
    CHUNKS: "    chunks = tensor.tensor_split(nodes)\n", FIRST + BETWEEN + LAST: FIRST + "    around(shares, inside, local + 1, add=False)\n"
    "    if local == 0:\n        around(chunks, partners, node, add=True)\n        around(chunks, partners, node + 1, add=False)\n"
    "    for k in range(1, per_node):\n        if local == 0:\n            dist.send(tensor, inside[k])\n"
    "        elif local == k:\n            dist.recv(tensor, inside[0])"
})  # fmt: skip
wrong("nobody waits for a send", "never waits for", {"        sending.wait()\n": ""})
wrong(
    "all send first",
    "ranks wait for each other, and nobody comes",
    {"sending = dist.isend": "dist.send", "        sending.wait()\n": ""},
)
wrong("collectives", "calls dist.all_reduce, and dist.send and dist.recv is all", {LAST: "    dist.all_reduce(tensor)"})
wrong("a partner is missing", "which has returned: it would wait for ever", {
    FIRST: "    if local and local == per_node - 1:\n        return\n" + FIRST
})  # fmt: skip


# --- wrong: memory, and what else is changed

wrong("copies of the shares", "and copy or pad nothing", {
    SHARES: "    shares = [share.clone() for share in tensor.tensor_split(per_node)]\n", LAST: LAST + "\n    tensor.copy_(torch.cat(shares))"
})  # fmt: skip
wrong(
    "a copy as bytes",
    "numpy's arrays count as well",
    {SHARES: "    before = tensor.numpy().tobytes()\n" + SHARES, LAST: LAST + "\n    del before"},
)
wrong("writes beyond its end", "writes beyond the ends of its tensor", {
    SHARES: "    torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + len(tensor)).zero_()\n" + SHARES
})  # fmt: skip
wrong(
    "a group in every call", "leaves the process groups other than before", {SHARES: "    dist.new_group()\n" + SHARES}
)
wrong(
    "the course's own",
    "the course's own code is no answer",
    {SHARES: "    from lessons.algorithms import all_reduce\n" + SHARES},
)
