"""Exercise 3 of the lab on sharded data parallelism: clip by the norm of all ranks' shards. What is not here is in the official solution."""

import math

import torch
import torch.distributed as dist
from known_answers import right, wrong

SEND, RESULT = "    dist.all_reduce(squares)\n", "return norm"


@right("torch's formula, with a millionth")
def with_a_millionth():
    def clip_shards(shards, max_norm):
        total = torch.tensor([sum(float(s.double().norm()) ** 2 for s in shards)], dtype=torch.float64)
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        norm = math.sqrt(total.item())
        factor = min(1.0, max_norm / (norm + 1e-6))
        for s in shards:
            s *= factor
        return norm

    return (clip_shards,)


@right("one vector, and a clamped factor")
def one_vector():
    @torch.no_grad()
    def clip_shards(shards, max_norm):
        vector = torch.cat([torch.zeros(1, dtype=torch.float64), *(s.flatten().double() for s in shards)])
        total = vector.dot(vector)
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        norm = total**0.5
        if shards:
            torch._foreach_mul_(list(shards), torch.clamp(max_norm / norm, max=1.0).item() if norm else 1.0)
        return norm.item()

    return (clip_shards,)


@right("the mean of squares, times the number of ranks")
def by_the_mean():
    def clip_shards(shards, max_norm):
        total = torch.zeros(1, dtype=torch.float64)
        for shard in shards:
            total += torch.linalg.vector_norm(shard, dtype=torch.float64) ** 2
        dist.all_reduce(total, dist.ReduceOp.AVG)
        norm = (total * dist.get_world_size()).sqrt()
        for shard in shards if norm > max_norm else ():
            shard.copy_(shard.double() * max_norm / norm)
        return norm

    return (clip_shards,)


wrong("the whole gradient is gathered", "calls all_gather", {
    SEND: SEND + "    parts = [None] * dist.get_world_size()\n    dist.all_gather_object(parts, [s.tolist() for s in shards])\n"
})  # fmt: skip
wrong(
    "twice",
    "more is sent than one number",
    {SEND: SEND + "    more = squares.clone()\n" + SEND.replace("squares", "more")},
)
wrong("float32 is sent", "less is sent than one number in float64", {
    SEND: "    squares = squares.float()\n" + SEND + "    squares = squares.double()\n"
})  # fmt: skip
wrong("who has no shard stays away", "Also a rank without a shard takes part", {SEND: "    if shards:\n    " + SEND})
