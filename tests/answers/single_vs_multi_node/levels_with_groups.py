"""Exercise 3 of the lab on one node and several: an all-reduce in two levels, with one's own groups."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


def make_groups(nodes, per_node):
    node_rank, local_rank = divmod(dist.get_rank(), per_node)
    node_groups = [dist.new_group([n * per_node + k for k in range(per_node)]) for n in range(nodes)]
    cross_groups = [dist.new_group([n * per_node + k for n in range(nodes)]) for k in range(per_node)]
    return node_groups[node_rank], cross_groups[local_rank]


def all_reduce_in_levels(tensor, node_group, cross_group):
    share = torch.empty_like(tensor[: len(tensor) // node_group.size()])
    dist.reduce_scatter_tensor(share, tensor, group=node_group)
    dist.all_reduce(share, group=cross_group)
    dist.all_gather_into_tensor(tensor, share, group=node_group)


EQUAL = {
    "15: `torch.empty_like(tensor[:len(tensor) // node_group.size()])` → `tensor[:len(tensor) // node_group.size()]`": (
        "gloo reads all that goes in before it writes what comes out, so the share may be a part of the tensor"
    )
}
SCATTER = "    dist.reduce_scatter_tensor(share, tensor, group=node_group)\n"
ACROSS = "    dist.all_reduce(share, group=cross_group)\n"
GATHER = "    dist.all_gather_into_tensor(tensor, share, group=node_group)"


# --- right, and written differently

right("lists", {
    SCATTER: "    dist.reduce_scatter(share, list(tensor.chunk(node_group.size())), group=node_group)\n",
    GATHER: "    dist.all_gather(list(tensor.chunk(node_group.size())), share, group=node_group)"
})  # fmt: skip
right("asynchronous, and waited for", {ACROSS: "    dist.all_reduce(share, group=cross_group, async_op=True).wait()\n"})
right("two halves across the nodes", {
    ACROSS: "    part = torch.empty_like(share[: len(share) // cross_group.size()])\n"
    "    dist.reduce_scatter_tensor(part, share, group=cross_group)\n"
    "    dist.all_gather_into_tensor(share, part, group=cross_group)\n"
})  # fmt: skip


@right("everybody's part of my share, added up here")
def by_all_to_all():
    def all_reduce_in_levels(tensor, node_group, cross_group):
        parts = torch.empty_like(tensor)
        dist.all_to_all_single(parts, tensor, group=node_group)
        share = parts.view(node_group.size(), -1).sum(0)
        dist.all_reduce(share, op=dist.ReduceOp.SUM, group=cross_group)
        whole = [torch.empty_like(share) for _ in range(dist.get_world_size(node_group))]
        dist.all_gather(whole, share, group=node_group)
        tensor.copy_(torch.cat(whole))

    return (all_reduce_in_levels,)


# --- wrong

wrong(
    "one ring through all ranks",
    "more bytes go between the nodes",
    {SCATTER + ACROSS + GATHER: "    dist.all_reduce(tensor)"},
)
wrong("two all-reduces", "more bytes go between the nodes", {
    SCATTER + ACROSS + GATHER: "    dist.all_reduce(tensor, group=node_group)\n    dist.all_reduce(tensor, group=cross_group)"
})  # fmt: skip
wrong("across first, with everything", "more bytes go between the nodes", {
    SCATTER + ACROSS + GATHER: "    dist.all_reduce(tensor, group=cross_group)\n    dist.all_reduce(tensor, group=node_group)"
})  # fmt: skip
wrong("an all-reduce inside, then shares", "more bytes go inside the nodes", {
    SCATTER: "    dist.all_reduce(tensor, group=node_group)\n    share = tensor.chunk(node_group.size())[node_group.rank()].clone()\n"
})  # fmt: skip
wrong("all parts are gathered across", "more bytes go between the nodes", {
    ACROSS: "    parts = [torch.empty_like(share) for _ in range(cross_group.size())]\n"
    "    dist.all_gather(parts, share, group=cross_group)\n    dist.all_gather(parts, share, group=cross_group)\n    share = sum(parts)\n"
})  # fmt: skip
wrong("all parts are gathered inside", "more bytes go inside the nodes", {
    SCATTER: "    parts = [torch.empty_like(tensor) for _ in range(node_group.size())]\n"
    "    dist.all_gather(parts, tensor, group=node_group)\n    share = sum(parts).chunk(node_group.size())[node_group.rank()].clone()\n"
})  # fmt: skip
wrong("only the node", "is the sum of this node only", {ACROSS: ""})
wrong(
    "only across",
    "more bytes go between the nodes",
    {SCATTER + ACROSS + GATHER: "    dist.all_reduce(tensor, group=cross_group)"},
)
wrong("groups swapped", "more bytes go between the nodes", {
    "all_reduce_in_levels(tensor, node_group, cross_group)": "all_reduce_in_levels(tensor, cross_group, node_group)"
})  # fmt: skip
wrong("the tensor stays", "is not touched", {GATHER: GATHER.replace("(tensor", "(tensor.clone()")})
wrong("a new tensor", "is not touched", {GATHER: "    tensor = tensor.clone()\n" + GATHER + "\n    return tensor"})
wrong("the mean", "is the mean", {GATHER: "    share /= dist.get_world_size()\n" + GATHER})
wrong(
    "the largest",
    "does not have the right numbers",
    {ACROSS: ACROSS.replace("share, ", "share, op=dist.ReduceOp.MAX, ")},
)
wrong(
    "in half precision",
    "does not have the right numbers",
    {ACROSS: "    half = share.bfloat16().to(share.dtype)\n    share.copy_(half)\n" + ACROSS},
)
wrong("never waited for", "never waits for", {ACROSS: ACROSS.replace("cross_group)", "cross_group, async_op=True)")})
wrong("waited for too late", "of this node only", {
    ACROSS: "    work = dist.all_reduce(share, group=cross_group, async_op=True)\n", GATHER: GATHER + "\n    work.wait()"
})  # fmt: skip
wrong(
    "a group of its own in each call", "leaves the process groups other", {SCATTER: "    dist.new_group()\n" + SCATTER}
)
wrong("the leader alone goes across", "more bytes go between the nodes", {
    SCATTER + ACROSS + GATHER: "    dist.all_reduce(tensor, group=node_group)\n"
    "    tensor *= node_group.rank() == 0\n    dist.all_reduce(tensor, group=cross_group)\n    dist.all_reduce(tensor, group=node_group)"
})  # fmt: skip
wrong(
    "messages",
    "wait in send",
    {ACROSS: ACROSS + "    dist.send(share[:0], (dist.get_rank() + 1) % dist.get_world_size())\n"},
)
wrong(
    "two ranks on each node",
    "raised",
    {"// node_group.size()": "// 2", SCATTER: "    assert node_group.size() == 2\n" + SCATTER},
)
wrong("left without a graph", "grad mode", {GATHER: GATHER + "\n    torch.set_grad_enabled(False)"})
wrong("one group of both kinds", "the two groups are swapped", {
    "return node_groups[node_rank], cross_groups[local_rank]": "return cross_groups[local_rank], node_groups[node_rank]"
})  # fmt: skip


SHARE = "    share = torch.empty_like(tensor[: len(tensor) // node_group.size()])\n"
right("in place: each rank's share is a part of the tensor", {
    SHARE: "    share = tensor.chunk(node_group.size())[node_group.rank()]\n"
})  # fmt: skip
wrong("shares sent round by hand", "calls dist.send, and", {
    ACROSS: "    mine = share.clone()\n    for step in range(1, cross_group.size()):\n"
    "        other, place = torch.empty_like(share), cross_group.rank()\n"
    "        works = [dist.isend(mine, group=cross_group, group_dst=(place + step) % cross_group.size()),\n"
    "                 dist.irecv(other, group=cross_group, group_src=(place - step) % cross_group.size())]\n"
    "        [work.wait() for work in works]\n        share += other\n"
})  # fmt: skip
wrong("a barrier of all ranks", "calls dist.barrier in another group", {ACROSS: ACROSS + "    dist.barrier()\n"})
wrong("a buffer as large as the first share", "raised", {
    SHARE: "    kept = all_reduce_in_levels.__dict__.setdefault('kept', {})\n"
    "    share = kept.setdefault(node_group.size(), torch.empty_like(tensor[: len(tensor) // node_group.size()]))\n"
})  # fmt: skip
wrong("a rank that has only zeros stays away", "wait for each other, and nobody comes", {
    SHARE: "    if not tensor.any():\n        return\n" + SHARE
})  # fmt: skip
wrong("a group of one is scaled", "the tensor is off by", {
    ACROSS: "    if cross_group.size() == 1:\n        share *= 1 + 1e-6\n" + ACROSS
})  # fmt: skip
wrong("NaN and infinities made into numbers", "one has to come out", {ACROSS: ACROSS + "    share.nan_to_num_()\n"})
wrong("shares in another order", "the right numbers, but in other places", {
    SCATTER: "    dist.reduce_scatter(share, list(tensor.chunk(node_group.size()))[::-1], group=node_group)\n"
})  # fmt: skip


@right("each share to its rank, and from it")
def by_roots():
    def all_reduce_in_levels(tensor, node_group, cross_group):
        ranks = dist.get_process_group_ranks(node_group)
        shares = tensor.view(len(ranks), -1)
        for share, root in zip(shares, ranks, strict=True):
            dist.reduce(share, dst=root, group=node_group)
        dist.all_reduce(shares[node_group.rank()], group=cross_group)
        for share, root in zip(shares, ranks, strict=True):
            dist.broadcast(share, src=root, group=node_group)

    return (all_reduce_in_levels,)
