"""Check of ``load_rows``: of what N ranks have saved, the rows of one of M, and no byte more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import bits, kind_of
from checks.labs.sharded_checkpoints.sharded_store import Reshard, cuts, make_store, share, tensors

OFFSET, KEEP = 'index[name]["offset"] + ', "        loaded[name] = mine\n"
READ = f"store.read(file, {OFFSET}(start - a) * row, (stop - start) * row)"
PLACE = "                mine[start - first : stop - first] = piece.reshape(stop - start, *shape[1:])\n"
SHARE = "first, last = share(shape[0], rank, world_size)\n"
WHOLE = f"store.read(file, {OFFSET[:-3]}, (b - a) * row)"
CUT = "                mine[start - first : stop - first] = piece.reshape(b - a, *shape[1:])[start - a : stop - a]\n"
OFFICIAL = Reference("sharded_checkpoints", "load_rows", {
    "a tensor begins at its offset in the file, not at byte 0": {OFFSET: ""},
    "a rank's first row may lie within a file's rows: skip start - a rows of it": {"(start - a) * row": "0"},
    "the first ranks have one row more, not the last one all the rest":
        {SHARE: "each, more = divmod(shape[0], world_size)\n        first = rank * each\n"
                "        last = first + each + more * (rank == world_size - 1)\n"},
    "pieces are in the order of their rows, not in that of the files":
        {"mine = torch.empty(last - first,": "pieces = [torch.empty(0,", "*shape[1:], dtype=dtype)": "*shape[1:], "
         "dtype=dtype)]", PLACE: "                pieces.append(piece.reshape(stop - start, *shape[1:]))\n",
         KEEP: "        loaded[name] = torch.cat(pieces)\n"},
    "a rank without rows gets a tensor with none, and yours gets no tensor":
        {KEEP: "        if len(mine):\n    " + KEEP},
    "all tensors come back as float32, and not in their own type": {KEEP: "        loaded[name] = mine.float()\n"},
    "whole shards are read: begin and end with this rank's own rows": {READ: WHOLE, PLACE: CUT},
    "files that hold no row of this rank are read too":
        {"if start < stop": "if a < b", READ: WHOLE, PLACE: "                if start < stop:\n    " + CUT},
    "the rows of a tensor lie side by side in a file: one read is enough for all of them":
        {"            if start < stop:\n": "            for number in range(start, stop):\n",
         READ: f"store.read(file, {OFFSET}(number - a) * row, row)",
         PLACE: "                mine[number - first] = piece.reshape(shape[1:])\n"},
})  # fmt: skip
PAIRS = (1, 4), (2, 3), (3, 3), (4, 1), (4, 2), (4, 3), (3, 5), (2, 9), (11, 2)
CASES = [{"saved_by": Reshard(*pair)} for pair in PAIRS]
CASES += [{"saved_by": Reshard(3, 2, seed=1)}, {"saved_by": Reshard(6, 4, seed=2)}, {"saved_by": Reshard(5, 1, seed=3)}]


@exercise(OFFICIAL, CASES, title="A resharding loader", difficulty=3, minutes=35)
def reshard(case: dict[str, Any], load_rows: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``load_rows(store, rank, world_size)``: right rows, and no byte too many."""
    reshard, values, reads, whole = case["saved_by"], {}, {}, tensors()
    for rank in range(reshard.loaded):
        store = make_store(whole, reshard)
        found = load_rows(store, rank, reshard.loaded)
        fault = "load_rows returns a dictionary from names to tensors"
        refuse(not isinstance(found, dict), fault, measured=kind_of(found))
        strange = [f"{name}: {kind_of(one)}" for name, one in found.items() if not isinstance(one, torch.Tensor)]
        refuse(strange, "in the dictionary is something that is not a tensor", measured=", ".join(strange[:3]))
        values[f"the names on rank {rank}"] = sorted(map(str, found))
        for name, tensor in found.items():
            values[f"the type of {name} on rank {rank}"] = str(tensor.dtype)
            values[f"the shape of {name} on rank {rank}"] = list(tensor.shape)
            values[f"the bytes of {name} on rank {rank}"] = bits(tensor).flatten()
        pieces = 0
        for tensor in whole.values():
            first, last = share(len(tensor), rank, reshard.loaded)
            pieces += sum(max(a, first) < min(b, last) for a, b in cuts(len(tensor), reshard) if tensor.numel())
        reads |= {
            f"the files that rank {rank} reads": sorted({file for file, _, _ in store.reads}),
            f"the bytes that rank {rank} reads": sum(size for _, _, size in store.reads),
            f"reads too many on rank {rank}": max(0, len(store.reads) - pieces),
            f"requests for an index too many on rank {rank}": len(store.asked) - len(set(store.asked)),
        }
    return values | reads
