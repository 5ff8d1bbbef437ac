"""Exercise 3 of the lab on one node and several: an all-reduce in two levels. What is not here is in the official solution."""

import torch.distributed as dist
from known_answers import right, wrong

SHARE = "    share = torch.empty_like(tensor[: len(tensor) // node_group.size()])\n"
SCATTER = "    dist.reduce_scatter_tensor(share, tensor, group=node_group)\n"
ACROSS = "    dist.all_reduce(share, group=cross_group)\n"
GATHER = "    dist.all_gather_into_tensor(tensor, share, group=node_group)"
ASYNC = ACROSS.replace("cross_group)", "cross_group, async_op=True)")
right("asynchronous, and waited for", {ACROSS: ASYNC.replace("True)", "True).wait()")})
right("in place: each rank's share is a part of the tensor", {
    SHARE: "    share = tensor.chunk(node_group.size())[node_group.rank()]\n"
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


wrong("one ring", "more bytes go between the nodes", {SCATTER + ACROSS + GATHER: "    dist.all_reduce(tensor)"})
wrong("two all-reduces", "more bytes go between the nodes", {
    SCATTER + ACROSS + GATHER:
    "    dist.all_reduce(tensor, group=node_group)\n    dist.all_reduce(tensor, group=cross_group)"
})  # fmt: skip
wrong("an all-reduce inside, then shares", "more bytes go inside the nodes", {
    SCATTER: "    dist.all_reduce(tensor, group=node_group)\n"
    "    share = tensor.chunk(node_group.size())[node_group.rank()].clone()\n"
})  # fmt: skip
wrong("groups swapped", "more bytes go between the nodes", {
    "(tensor, node_group, cross_group)": "(tensor, cross_group, node_group)"
})  # fmt: skip
wrong("waited for too late", "it is the sum of this node only", {
    ACROSS: ASYNC.replace("dist", "work = dist"), GATHER: GATHER + "\n    work.wait()"
})  # fmt: skip
