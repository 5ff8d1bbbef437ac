"""Exercise 1 of the lab on sharded data parallelism: each rank gets its shard of the mean gradient."""

# ruff: noqa: F401 (modules that changed answers use)
import array
import io

import torch
import torch.distributed as dist
from known_answers import right, wrong


def reduce_gradients(parameters):
    ranks = dist.get_world_size()
    flat = [parameter.grad.flatten() for parameter in parameters]
    padding = -sum(one.numel() for one in flat) % ranks
    whole = torch.cat([*flat, flat[0].new_zeros(padding)])
    shard = whole.new_empty(whole.numel() // ranks)
    dist.reduce_scatter_single(shard, whole, dist.ReduceOp.AVG)
    for parameter in parameters:
        parameter.grad = None
    return shard


REDUCE = "    dist.reduce_scatter_single(shard, whole, dist.ReduceOp.AVG)\n"
CLEAR = "        parameter.grad = None\n"
EQUAL = {
    "11: 0 → -1": "whichever parameter says of what type the padding is",
}


# --- right, and written differently


@right("divided before the sum, in a list of chunks")
def a_list():
    def reduce_gradients(parameters):
        ranks = dist.get_world_size()
        whole = torch.nn.utils.parameters_to_vector(p.grad.contiguous() for p in parameters) / ranks
        whole = torch.nn.functional.pad(whole, (0, -len(whole) % ranks))
        shard = torch.empty(len(whole) // ranks, dtype=whole.dtype)
        dist.reduce_scatter(shard, list(whole.chunk(ranks)))
        for p in parameters:
            p.grad = None
        return shard

    return (reduce_gradients,)


@right("asynchronous, gradients cleared while it travels")
def asynchronous():
    def reduce_gradients(parameters):
        ranks = dist.get_world_size()
        length = sum(p.numel() for p in parameters)
        whole = torch.zeros(-(-length // ranks) * ranks, dtype=parameters[0].dtype)
        place = 0
        for p in parameters:
            whole[place : place + p.numel()].view_as(p).copy_(p.grad)
            place += p.numel()
        shard = torch.empty(whole.numel() // ranks, dtype=whole.dtype)
        work = dist.reduce_scatter_single(shard, whole, async_op=True)
        for p in parameters:
            p.grad = None
        work.wait()
        return shard.div_(ranks)

    return (reduce_gradients,)


@right("one column for each rank")
def columns():
    @torch.no_grad()
    def reduce_gradients(parameters):
        ranks = dist.get_world_size()
        values = torch.cat([p.grad.reshape(-1) for p in parameters])
        table = torch.zeros(ranks, -(-len(values) // ranks), dtype=values.dtype)
        table.view(-1)[: len(values)] = values
        mine = torch.zeros_like(table[0])
        dist.reduce_scatter_single(mine, table.flatten())
        torch._foreach_zero_([p.grad for p in parameters])
        for p in parameters:
            p.grad = None
        return mine * (1 / ranks)

    return (reduce_gradients,)


# --- wrong

wrong("the sum", "is the sum over the ranks", {", dist.ReduceOp.AVG": ""})
wrong("divided twice", "does not have the right numbers", {"    return shard\n": "    return shard / ranks\n"})
wrong("an all-reduce, and a cut", "brings every rank the whole gradient", {
    REDUCE: "    dist.all_reduce(whole, dist.ReduceOp.AVG)\n    shard.copy_(whole.chunk(ranks)[dist.get_rank()])\n"
})  # fmt: skip
wrong("nothing is sent", "calls no reduce_scatter at all", {
    REDUCE: "    shard.copy_(whole.chunk(ranks)[dist.get_rank()])\n"
})  # fmt: skip
wrong("no wait", "never waits for", {"dist.ReduceOp.AVG)": "dist.ReduceOp.AVG, async_op=True)"})
wrong("the whole gradients stay", "the whole gradient is still there", {CLEAR: "        pass\n"})
wrong("zeros stay", "the whole gradient is still there", {CLEAR: "        parameter.grad.zero_()\n"})
wrong("no padding, the rest is lost", "share of the padded length", {
    "    whole = torch.cat([*flat, flat[0].new_zeros(padding)])\n":
    "    whole = torch.cat(flat)\n    whole = whole[: whole.numel() // ranks * ranks]\n"
})  # fmt: skip
wrong("padding in front", "does not have the right numbers", {
    "[*flat, flat[0].new_zeros(padding)]": "[flat[0].new_zeros(padding), *flat]"
})  # fmt: skip
wrong("padding where none is needed", "share of the padded length", {"% ranks\n": "% ranks or ranks\n"})
wrong("each parameter by itself", "sends more than it has to", {
    REDUCE: "    for one in flat:\n        part = torch.cat([one, one.new_zeros(-one.numel() % ranks)])\n"
    "        dist.reduce_scatter_single(part.new_empty(len(part) // ranks), part)\n" + REDUCE
})  # fmt: skip
wrong("in another type", "has another shape or type", {"torch.cat([*flat,": "torch.cat([one.half() for one in flat] + [",
                                                       "flat[0].new_zeros(padding)": "flat[0].new_zeros(padding).half()"})  # fmt: skip
wrong("a view into the whole tensor", "a view into a larger tensor", {
    "    shard = whole.new_empty(whole.numel() // ranks)\n":
    "    shard = whole.new_empty(2 * whole.numel())[: whole.numel() // ranks]\n"
})  # fmt: skip
wrong("the neighbour's shard", "is the shard of rank", {
    REDUCE: "    whole = whole.roll(shard.numel())\n" + REDUCE
})  # fmt: skip
wrong("the same memory in each call", "a later call has written into the shard", {
    "def reduce_gradients": "KEPT = {}\n\n\ndef reduce_gradients",
    "whole.new_empty(whole.numel() // ranks)": "KEPT.setdefault(len(whole), whole.new_empty(whole.numel() // ranks))",
})  # fmt: skip
wrong("nothing returned", "is missing", {"    return shard\n": "    return None\n"})
wrong("the parameters are changed", "has other numbers than before", {
    CLEAR: CLEAR + "        parameter.data.mul_(0.9)\n"
})  # fmt: skip


wrong("needs two parameters", "raised IndexError", {"flat[0].new_zeros": "flat[1].new_zeros"})
wrong(
    "NaN and infinities made into numbers",
    "one has to come out",
    {"    return shard\n": "    return shard.nan_to_num()\n"},
)
wrong("the whole gradient is kept", "more than the shard is still held", {
    "    return shard\n": "    reduce_gradients.whole = whole\n    return shard\n"
})  # fmt: skip
wrong("the whole gradient hangs on the shard", "more than the shard is still held", {
    "    return shard\n": "    shard.whole = whole\n    return shard\n"
})  # fmt: skip
wrong("single numbers are left out", "the shard", {
    "for parameter in parameters]": "for parameter in parameters if parameter.dim()]"
})  # fmt: skip
wrong("zeros are left out", "the ranks do not call the same collectives", {
    "for parameter in parameters]": "for parameter in parameters if parameter.grad.any()]"
})  # fmt: skip
wrong("the gradients themselves are kept", "the gradients that `.grad` has let go of", {
    "    flat = [": "    reduce_gradients.kept = [parameter.grad for parameter in parameters]\n    flat = ["
})  # fmt: skip
wrong("the whole gradient is kept as an array of Python's", "more than the shard is still held", {
    "    return shard\n": "    reduce_gradients.kept = array.array('d', whole.tolist())\n    return shard\n"
})  # fmt: skip
wrong("the whole gradient is kept in a buffer", "more than the shard is still held", {
    "    return shard\n": "    reduce_gradients.kept = io.BytesIO(whole.numpy())\n    return shard\n"
})  # fmt: skip
wrong("the whole gradient is kept as text", "more than the shard is still held", {
    "    return shard\n": "    reduce_gradients.kept = 9 * whole.numpy().tobytes().hex()\n    return shard\n"
})  # fmt: skip
wrong("the list is emptied", "after reduce_gradients, `parameters", {CLEAR: CLEAR + "    parameters.clear()\n"})
