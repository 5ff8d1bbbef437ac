"""Check of ``reduce_gradients``: this rank's shard of the mean of all gradients, and nothing else is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, memory, refuse, watched
from checks.engine.plain import kind_of
from checks.engine.watching import explained
from checks.labs.sharded_data_parallel import layers

REDUCE, RESULT = "    dist.reduce_scatter_single(shard, whole, dist.ReduceOp.AVG)\n", "    return shard\n"
WHOLE, CLEAR = "[*flat, flat[0].new_zeros(padding)]", "parameter.grad = None"
NEW = "whole.new_empty(whole.numel() // ranks)"
OFFICIAL = Reference("sharded_data_parallel", "reduce_gradients", {
    "the shard is the sum over the ranks: divide by the world size": {", dist.ReduceOp.AVG": ""},
    "an all-reduce brings every rank the whole gradient, of which it keeps a shard: a reduce-scatter is enough":
        {REDUCE: "    dist.all_reduce(whole, dist.ReduceOp.AVG)\n"
                 "    shard.copy_(whole.chunk(ranks)[dist.get_rank()])\n"},
    "gradients are still there: set `.grad` to None, or nothing is saved (zeros take as much memory)": {CLEAR: "pass"},
    "the padding is in front: it comes at the end": {WHOLE: "[flat[0].new_zeros(padding), *flat]"},
    "there is padding where none is needed": {"% ranks\n": "% ranks or ranks\n"},
    "what is left over is cut off: add zeros at the end instead":
        {f"torch.cat({WHOLE})": "torch.cat(flat)\n    whole = whole[: len(whole) // ranks * ranks]"},
    "a later call writes into the shard that this one has returned: give each its own memory":
        {NEW: f"vars(reduce_gradients).setdefault('kept', {NEW})"},
})  # fmt: skip
CASES = [
    {"type": "float64", "parameters": "several", "padding": "some", "seed": 1},
    {"type": "float32", "parameters": "several", "padding": "none", "seed": 2},
    {"type": "float32", "parameters": "one", "padding": "some", "seed": 3},
]


@exercise(OFFICIAL, CASES, title="Reduce-scatter the gradients", difficulty=1, minutes=20, ranks=(3, 2, 4))
def reduce_gradients(case: dict[str, Any], reduce_gradients: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``reduce_gradients(parameters)``, which returns this rank's shard of the mean gradient."""
    rank, ranks, seen, returned = dist.get_rank(), dist.get_world_size(), dict[str, Any](), []
    parameters = layers.parameters(case, ranks, case["seed"])
    whole = layers.joined(parameters, ranks).nbytes
    for step in ("", " in a second call"):
        layers.draw_gradients(parameters, case["seed"] + 100 * len(step) + rank)
        if rank == case["seed"] % ranks:  # all zero, and travels all the same
            parameters[0].grad.zero_()
        storages = [memory.StorageWeakRef(one.grad.untyped_storage()) for one in parameters]
        fault = "All ranks hand in all gradients, also of zeros, with the padding"
        numbers = [one.detach() for one in parameters]
        with leaves(parameters=numbers), explained(fault), watched() as wire:
            shard = reduce_gradients(list(parameters))
        refuse(not isinstance(shard, torch.Tensor), "the result is no tensor", measured=kind_of(shard))
        left = sum(one.grad is not None for one in parameters)
        returned.append(shard)
        seen |= {
            f"what is handed in{step}": layers.handed_in(wire),
            f"the shard{step}": shard.detach().clone(),
            f"gradients that are still there{step}": left,
        }
        fault = "after the call the gradients are still held, in a global or an attribute: let them go"
        refuse(not left and memory.is_kept(*storages), fault)
        storage = shard.untyped_storage().nbytes()
        fault = "the shard is a view into a larger tensor, all of which stays in memory with it: clone() it"
        refuse(storage >= whole and shard.nbytes < whole, fault, measured=f"{storage} bytes", expected=shard.nbytes)
    return seen | {"the first shard, after the second call": returned[0].detach().clone()}
