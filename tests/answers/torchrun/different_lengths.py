"""Exercise 4 of the lab on torchrun: parts of different length."""

import numpy as np
import torch
import torch.distributed as dist
from known_answers import right, wrong


def gather_all(predictions):
    world_size = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(lengths, torch.tensor([len(predictions)]))
    longest = int(max(lengths))
    padded = torch.zeros(longest, dtype=torch.int64)
    padded[: len(predictions)] = predictions
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


LENGTHS = "    dist.all_gather(lengths, torch.tensor([len(predictions)]))\n"
LONGEST = "    longest = int(max(lengths))\n"
PADDED = "    padded = torch.zeros(longest, dtype=torch.int64)\n    padded[: len(predictions)] = predictions\n"
PARTS = "    parts = [torch.empty_like(padded) for _ in range(world_size)]\n    dist.all_gather(parts, padded)\n"
RETURN = "    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])"
LOST = "any number may be one, so none can mark padding"
EQUAL = {
    "10: without `world_size = dist.get_world_size()`": "a rank of the course has names of its own for these",
    "14: `int(max(lengths))` → `max(lengths)`": "a tensor with one number is a length too",
    "19: `zip(parts, lengths, strict=True)` without strict": "both are equally long",
    "19: True → False": "both are equally long",
}


# --- right, and written differently


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


# --- wrong

wrong("as given", "gloo itself gives up", {
    LENGTHS + LONGEST + PADDED: "    padded = predictions\n", RETURN: "    return torch.cat(parts)"
})  # fmt: skip
wrong("the padding stays", "the padding is still in it", {RETURN: "    return torch.cat(parts)"})
wrong("cut to the own length", "the padding is still in it", {"part[:length] for": "part[:len(predictions)] for"})
wrong("cut to the shortest", "all parts are cut to the shortest one", {"part[:length] for": "part[:min(lengths)] for"})
wrong("marked with -1", LOST, {
    "torch.zeros(longest, dtype=torch.int64)": "torch.full((longest,), -1)",
    RETURN: "    return torch.cat([part[part != -1] for part in parts])",
})  # fmt: skip
wrong("marked with 0", LOST, {RETURN: "    return torch.cat([part[part != 0] for part in parts])"})
wrong("marked with the smallest int64", LOST, {
    "torch.zeros(longest, dtype=torch.int64)": "torch.full((longest,), -(2**63))",
    RETURN: "    return torch.cat([part[part != -(2**63)] for part in parts])",
})  # fmt: skip
wrong("a broadcast for each", "more collectives than a gather needs", {
    PADDED + PARTS: "    parts = [predictions.clone() if n == dist.get_rank() else torch.empty(int(one), dtype=torch.int64)\n"
    "             for n, one in enumerate(lengths)]\n"
    "    for n, part in enumerate(parts):\n        dist.broadcast(part, n)\n"
})  # fmt: skip
wrong("rank 0 only", "every rank needs the result", {
    RETURN: RETURN + " if dist.get_rank() == 0 else None"
})  # fmt: skip
wrong("room for a thousand", "is given more bytes than a gather needs", {"int(max(lengths))": "1000"})
wrong("room for all", "is given more bytes than a gather needs", {"int(max(lengths))": "300 * int(max(lengths)) + 1"})
wrong("room for ten", "raised RuntimeError", {"int(max(lengths))": "10"})
wrong("through float64", "they are int64, and have to stay so", {
    "torch.zeros(longest, dtype=torch.int64)": "torch.zeros(longest, dtype=torch.float64)", RETURN: RETURN + ".long()"
})  # fmt: skip
wrong("through int32", "they are int64, and have to stay so", {
    "torch.zeros(longest, dtype=torch.int64)": "torch.zeros(longest, dtype=torch.int32)", RETURN: RETURN + ".long()"
})  # fmt: skip
wrong("lengths in a byte", "these are not the predictions of all ranks", {
    "[torch.zeros(1, dtype=torch.int64) for": "[torch.zeros(1, dtype=torch.uint8) for",
    "torch.tensor([len(predictions)])": "torch.tensor([len(predictions) % 256], dtype=torch.uint8)",
    "padded[: len(predictions)] = predictions": "padded[: len(predictions)] = predictions[:longest]",
})  # fmt: skip
wrong("int32 comes back", "another shape or type", {RETURN: RETURN + ".int()"})
wrong("a list comes back", "gather_all returns one tensor", {RETURN: RETURN + ".tolist()"})
wrong("a table comes back", "another shape or type", {RETURN: "    return torch.stack(parts)"})
wrong("sorted", "not in the order of the ranks", {RETURN: RETURN + ".sort().values"})
wrong("own part first", "not in the order of the ranks", {
    RETURN: "    me = dist.get_rank()\n    parts, lengths = parts[me:] + parts[:me], lengths[me:] + lengths[:me]\n" + RETURN
})  # fmt: skip
wrong("without the empty ones", "gather_all", {
    RETURN: RETURN.replace("strict=True)", "strict=True) if length > 0")
})  # fmt: skip
wrong("the predictions are sorted first", "`predictions` has other numbers than before", {
    LONGEST: LONGEST + "    predictions.copy_(predictions.sort().values)\n"
})  # fmt: skip
wrong("for three ranks", "gather_all", {"    world_size = dist.get_world_size()": "    world_size = 3"})
wrong("not waited for", "never waits for 1 of", {
    "    dist.all_gather(parts, padded)\n": "    dist.all_gather(parts, padded, async_op=True)\n"
})  # fmt: skip
wrong("only ranks that have some", "gloo itself gives up", {
    LENGTHS: "    if not len(predictions):\n        return predictions\n" + LENGTHS
})  # fmt: skip
wrong("messages", "collectives are enough", {
    PADDED + PARTS: "    parts, me = [torch.empty(int(one), dtype=torch.int64) for one in lengths], dist.get_rank()\n"
    "    parts[me] = predictions\n"
    "    works = [dist.isend(predictions, n) for n in range(world_size) if n != me]\n"
    "    works += [dist.irecv(parts[n], n) for n in range(world_size) if n != me]\n"
    "    for work in works:\n        work.wait()\n"
})  # fmt: skip
wrong("a file for each rank", "leaves the files in its folder other than before", {
    PADDED: PADDED + "    torch.save(predictions, f'part_{dist.get_rank()}.pt')\n"
})  # fmt: skip
wrong("room for all parts in an all-reduce", "is given more bytes than a gather needs", {
    PADDED + PARTS + RETURN: "    me, lengths = dist.get_rank(), [int(one) for one in lengths]\n"
    "    everyone = torch.zeros(sum(lengths), dtype=torch.int64)\n"
    "    everyone[sum(lengths[:me]) : sum(lengths[: me + 1])] = predictions\n"
    "    dist.all_reduce(everyone)\n    return everyone",
})  # fmt: skip
KEPT = "def gather_all(predictions):\n"
OWN = "    key = tuple(map(int, lengths))\n"
wrong("a place for each set of lengths", "of another call", {
    KEPT: "places = {}\n\n\n" + KEPT,
    RETURN: OWN + RETURN.replace("return", "found =")
    + "\n    return places.setdefault(key, torch.empty_like(found)).copy_(found)"
})  # fmt: skip
wrong("remembered by lengths", "of another call", {
    KEPT: "known = {}\n\n\n" + KEPT,
    PADDED: OWN + "    if key in known:\n        return known[key]\n" + PADDED,
    RETURN: RETURN.replace("return", "known[key] =") + "\n    return known[key]",
})  # fmt: skip
wrong("the newest buffer, of which a view comes back", "of another call", {
    KEPT: "room = torch.empty(10_000, dtype=torch.int64)\n\n\n" + KEPT,
    RETURN: RETURN.replace("return", "found =") + "\n    return room[: len(found)].copy_(found)"
})  # fmt: skip
wrong("lengths remembered by the own one", "gloo itself gives up", {
    KEPT: "known = {}\n\n\n" + KEPT,
    LENGTHS: "    key = world_size, len(predictions)\n    if key not in known:\n    " + LENGTHS
    + "        known[key] = lengths\n    lengths = known[key]\n"
})  # fmt: skip
