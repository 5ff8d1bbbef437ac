"""Exercise 4 of the lab on torchrun: parts of different length. What is not here is in the official solution."""

import numpy as np
import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("objects")
def objects():
    def gather_all(predictions):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, predictions)
        return torch.cat(parts)

    return (gather_all,)


@right("objects that are lists")
def lists():
    def gather_all(predictions):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, predictions.tolist())
        return torch.tensor([one for part in parts for one in part], dtype=torch.int64)

    return (gather_all,)


@right("one matrix, and a mask")
def one_matrix():
    def gather_all(predictions):
        world_size = dist.get_world_size()
        lengths = torch.empty(world_size, dtype=torch.int64)
        dist.all_gather_into_tensor(lengths, torch.tensor([len(predictions)]))
        longest = int(lengths.max())
        rows = torch.empty(world_size * longest, dtype=torch.int64)
        dist.all_gather_into_tensor(rows, torch.nn.functional.pad(predictions, (0, longest - len(predictions))))
        return rows.view(world_size, longest)[torch.arange(longest) < lengths[:, None]]

    return (gather_all,)


@right("the longest by a maximum; each part says its own length")
def maximum():
    def gather_all(predictions):
        if dist.get_world_size() == 1:
            return predictions
        longest = torch.tensor(predictions.numel())
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        mine = predictions.new_zeros(int(longest) + 1)
        mine[0], mine[1 : 1 + predictions.numel()] = predictions.numel(), predictions
        everyone = torch.empty(dist.get_world_size(), len(mine), dtype=mine.dtype)
        dist.all_gather(list(everyone.unbind()), mine)
        return torch.cat([row[1 : 1 + row[0]] for row in everyone])

    return (gather_all,)


right("in the background", {
    "    dist.all_gather(parts, padded)\n": "    dist.all_gather(parts, padded, async_op=True).wait()\n"
})  # fmt: skip


@right("bytes, and numpy")
def bytes_and_numpy():
    def gather_all(predictions):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, predictions.numpy().tobytes())
        return torch.from_numpy(np.frombuffer(b"".join(parts), dtype=np.int64).copy())

    return (gather_all,)


@right("a copy that is resized, and narrow")
def resized():
    def gather_all(predictions):
        lengths = torch.empty(dist.get_world_size(), dtype=torch.int64)
        dist.all_gather_into_tensor(lengths, torch.tensor([predictions.numel()]))
        longest = int(lengths.max())
        everyone = torch.empty(len(lengths) * longest, dtype=torch.int64)
        dist.all_gather_into_tensor(everyone, predictions.clone().resize_(longest))
        out = torch.empty(int(lengths.sum()), dtype=torch.int64)
        return torch.cat([everyone.narrow(0, n * longest, one) for n, one in enumerate(lengths.tolist())], out=out)

    return (gather_all,)


LENGTHS = "    dist.all_gather(lengths, torch.tensor([len(predictions)]))\n"
PADDED = "    padded = torch.zeros(max(lengths), dtype=torch.int64)\n    padded[: len(predictions)] = predictions\n"
GATHER = "    dist.all_gather(parts, padded)\n"
PARTS = "    parts = [torch.empty_like(padded) for _ in range(world_size)]\n" + GATHER
wrong("as given", "gloo itself gives up", {LENGTHS + PADDED: "    padded = predictions\n", "[part[:length]": "[part"})
wrong("a broadcast for each", "there are more than 2 collectives", {
    PADDED + PARTS: "    parts = [predictions.clone() if n == dist.get_rank() else torch.empty(int(one), dtype=torch.int64)\n"
    "             for n, one in enumerate(lengths)]\n"
    "    for n, part in enumerate(parts):\n        dist.broadcast(part, n)\n"
})  # fmt: skip
wrong("room for a thousand", "is given more bytes than a gather needs", {"zeros(max(lengths)": "zeros(1000"})
wrong("not waited for", "never waits for", {GATHER: GATHER.replace("padded)", "padded, async_op=True)")})
wrong("only ranks that have some", "gloo itself gives up", {
    LENGTHS: "    if not len(predictions):\n        return predictions\n" + LENGTHS
})  # fmt: skip
