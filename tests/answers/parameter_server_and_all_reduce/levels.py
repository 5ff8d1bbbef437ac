"""Exercise 4 of the lab on all-reduces: rings inside the nodes, and rings between them. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


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


SHARES = "    shares = tensor.tensor_split(per_node)\n"
CHUNKS = "    chunks = shares[(local + 1) % per_node].tensor_split(nodes)\n"
FIRST = "    around(shares, inside, local, add=True)\n"
BETWEEN = "    around(chunks, partners, node, add=True)\n    around(chunks, partners, node + 1, add=False)\n"
LAST = "    around(shares, inside, local + 1, add=False)"
wrong("a flat ring", "this is one flat ring through all ranks", {
    SHARES + CHUNKS + FIRST + BETWEEN + LAST: "    everybody, rank = list(range(nodes * per_node)), dist.get_rank()\n"
    "    chunks = tensor.tensor_split(len(everybody))\n    around(chunks, everybody, rank, add=True)\n"
    "    around(chunks, everybody, rank + 1, add=False)"
})  # fmt: skip
wrong("between the nodes first", "add up inside the node first", {
    CHUNKS + FIRST + BETWEEN: "    chunks = tensor.tensor_split(nodes)\n" + BETWEEN + FIRST
})  # fmt: skip
wrong("nodes dealt like cards", "add up inside the node first", {
    "node, local = divmod(dist.get_rank(), per_node)": "local, node = divmod(dist.get_rank(), nodes)",
    "node * per_node + k": "k * nodes + node", "n * per_node + local": "local * nodes + n",
})  # fmt: skip
wrong(
    "everything inside twice",
    "sends more inside its node",
    {LAST: LAST + "\n    tensor /= 1 if tensor.is_floating_point() else 1\n" + LAST},
)
wrong("copies of the shares", "add in place (chunk += received), copy nothing", {
    SHARES: SHARES + "    shares = [share.clone() for share in shares]\n", LAST: LAST + "\n    tensor.copy_(torch.cat(shares))"
})  # fmt: skip
