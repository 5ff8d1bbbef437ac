"""Exercise 5 of the lab on torchrun: parts of different length. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

LENGTHS = "    dist.all_gather(lengths, torch.tensor([len(predictions)]))\n"
PADDED = "    padded = torch.zeros(max(lengths), dtype=torch.int64)\n    padded[: len(predictions)] = predictions\n"
GATHER = "    dist.all_gather(parts, padded)\n"
PARTS = "    parts = [torch.empty_like(padded) for _ in range(world_size)]\n" + GATHER
RETURN = "    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])"
EMPTY = "    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]\n"
ALL = EMPTY + LENGTHS + PADDED + PARTS + RETURN
OBJECTS = "    parts = [None] * world_size\n    dist.all_gather_object(parts, predictions{})\n    return "
right("objects", {ALL: OBJECTS.format("") + "torch.cat(parts)"})
right("one matrix, and a mask", {
    ALL: "    lengths = torch.empty(world_size, dtype=torch.int64)\n"
         "    dist.all_gather_into_tensor(lengths, torch.tensor([len(predictions)]))\n    longest = int(lengths.max())\n"
         "    rows = torch.empty(world_size * longest, dtype=torch.int64)\n"
         "    mine = torch.nn.functional.pad(predictions, (0, longest - len(predictions)))\n"
         "    dist.all_gather_into_tensor(rows, mine)\n"
         "    return rows.view(world_size, longest)[torch.arange(longest) < lengths[:, None]]"
})  # fmt: skip


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


wrong("as given", "gloo itself gives up", {LENGTHS + PADDED: "    padded = predictions\n", "[part[:length]": "[part"})
wrong("a broadcast for each", "there are too many collectives", {
    PADDED + PARTS: "    parts = [torch.empty(int(one), dtype=torch.int64) for one in lengths]\n"
                    "    parts[dist.get_rank()] = predictions.clone()\n"
                    "    for n, part in enumerate(parts):\n        dist.broadcast(part, n)\n"
})  # fmt: skip
wrong("room for a thousand", "too many bytes in a collective", {"zeros(max(lengths)": "zeros(1000"})
wrong("not waited for", "never waits for", {GATHER: GATHER.replace("padded)", "padded, async_op=True)")})
wrong("only ranks that have some", "gloo itself gives up", {
    LENGTHS: "    if not len(predictions):\n        return predictions\n" + LENGTHS
})  # fmt: skip
