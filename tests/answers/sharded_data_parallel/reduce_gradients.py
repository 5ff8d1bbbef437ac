"""Exercise 1 of the lab on sharded data parallelism: shards of the mean gradient. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


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


wrong("no wait", "never waits for", {"dist.ReduceOp.AVG)": "dist.ReduceOp.AVG, async_op=True)"})
wrong("a view into the whole tensor", "a view into a larger tensor", {
    "    shard = whole.new_empty(whole.numel() // ranks)\n":
    "    shard = whole.new_empty(2 * whole.numel())[: whole.numel() // ranks]\n"
})  # fmt: skip
wrong("needs two parameters", "raised IndexError", {"flat[0].new_zeros": "flat[1].new_zeros"})
wrong("zeros are left out", "All ranks hand in all gradients, also of zeros", {
    "for parameter in parameters]": "for parameter in parameters if parameter.grad.any()]"
})  # fmt: skip
wrong("the gradients themselves are kept", "the gradients are still held", {
    "    flat = [parameter": "    reduce_gradients.kept = [parameter.grad for parameter in parameters]\n    flat = [parameter"
})  # fmt: skip
