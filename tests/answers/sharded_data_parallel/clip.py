"""Exercise 3 of the lab on sharded data parallelism: clip by the norm of all ranks' shards."""

import math

import torch
import torch.distributed as dist
from known_answers import right, wrong


def clip_shards(shards, max_norm):
    squares = torch.zeros((), dtype=torch.float64)
    for shard in shards:
        squares += shard.double().square().sum()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm


SEND = "    dist.all_reduce(squares)\n"
SQUARES = "shard.double().square().sum()"
EQUAL = {
    "16: other comparison in `norm > max_norm`": "a norm of just max_norm is scaled by 1",
}


# --- right, and written differently


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


# --- wrong

wrong("each its own norm", "calls no all_reduce at all", {SEND: ""})
wrong("norms are added", "it is the squares that add up", {
    SEND: "    squares = squares.sqrt()\n" + SEND + "    squares = squares**2\n"
})  # fmt: skip
wrong(
    "the mean of squares",
    "the mean of the ranks' squares",
    {"all_reduce(squares)": "all_reduce(squares, dist.ReduceOp.AVG)"},
)
wrong(
    "the largest",
    "the largest of the ranks' norms",
    {"all_reduce(squares)": "all_reduce(squares, dist.ReduceOp.MAX)"},
)
wrong("no root", "the square of the norm", {"    return norm\n": "    return squares\n"})
wrong("no wait", "never waits for", {"all_reduce(squares)": "all_reduce(squares, async_op=True)"})
wrong("always scaled", "all the same the gradient was changed", {"if norm > max_norm:": "if norm > 0:"})
wrong("not at all", "is not the one before", {"            shard.mul_(max_norm / norm)\n": "            pass\n"})
wrong("scaled by its own norm", "is scaled by this rank's own norm", {
    SEND: "    own = squares.sqrt()\n" + SEND,
    "            shard.mul_(max_norm / norm)\n": "            shard.mul_(min(1.0, max_norm / own))\n",
})  # fmt: skip
wrong("squares in float32", "not finite", {SQUARES: "shard.square().sum().double()"})
wrong("a copy is scaled", "is not the one before", {"shard.mul_(max_norm / norm)": "shard = shard * (max_norm / norm)"})
wrong("the whole gradient is gathered", "one number is enough", {
    SEND: SEND + "    parts = [None] * dist.get_world_size()\n    dist.all_gather_object(parts, [s.tolist() for s in shards])\n"
})  # fmt: skip
wrong(
    "twice",
    "sends more than it has to",
    {SEND: SEND + "    more = squares.clone()\n" + SEND.replace("squares", "more")},
)
wrong("None", "None: return the true norm", {"    return norm\n": "    return None\n"})
wrong("float32 is sent", "less than one number in float64", {
    SEND: "    squares = squares.float()\n" + SEND + "    squares = squares.double()\n"
})  # fmt: skip
wrong(
    "False where there is nothing",
    "a bool that is no single number: return the true norm",
    {"    return norm\n": "    return norm if norm > 0 else False\n"},
)
wrong(
    "a text",
    "a str that is no single number: return the true norm",
    {"    return norm\n": "    return f'{norm:.9f}'\n"},
)
wrong("the empty list gets a shard", "`shards` is not as before (length)", {
    "    dist.all_reduce(squares)\n": "    if not shards:\n        shards.append(squares)\n    dist.all_reduce(squares)\n"
})  # fmt: skip
wrong("what came before is kept", "keeps more tensors after every call", {
    "def clip_shards": "before = []\n\n\ndef clip_shards",
    "    return norm\n": "    before.append([shard.clone() for shard in shards])\n    return norm\n",
})  # fmt: skip
wrong("only the ranks that are above it themselves", "times max_norm over the true norm", {
    "    if norm > max_norm:\n": "    if sum(float(shard.double().square().sum()) for shard in shards) ** 0.5 > max_norm:\n"
})  # fmt: skip


wrong(
    "a max_norm of 0 is taken for none",
    "times max_norm over the true norm",
    {"    if norm > max_norm:\n": "    if max_norm and norm > max_norm:\n"},
)
