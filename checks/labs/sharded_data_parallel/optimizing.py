"""Check of ``ShardedOptimizer``: parameters as of one process, the state of one shard. (ZeRO-1.)"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import Reference, exercise, memory, refuse, watched
from checks.engine.watching import explained
from checks.labs.sharded_data_parallel import layers

STEPS = 3
STATES, MOST = 2, 4  # the optimizer's state, and what may be held after a step beside the parameters, in shards
FLAT = "self.flat(one.grad for one in self.parameters)"
REDUCE = f"        dist.reduce_scatter_single(gradient, {FLAT}, dist.ReduceOp.AVG)\n"
CUT = "        gradient.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])\n"
STEP, GATHER = "        self.optimizer.step()\n", "        dist.all_gather_single(whole, self.shard.detach())\n"
HERE = "self.flat(one.detach() for one in self.parameters)"
OFFICIAL = Reference("sharded_data_parallel", "ShardedOptimizer", {
    "the gradient is the sum over the ranks: divide by the world size":
        {REDUCE: REDUCE.replace(", dist.ReduceOp.AVG", "")},
    "each rank uses its own gradient: nothing of the others has arrived": {REDUCE: f"        whole = {FLAT}\n{CUT}"},
    "an all-reduce brings every rank the whole gradient, of which it keeps a shard: a reduce-scatter is enough":
        {REDUCE: f"        whole = {FLAT}\n        dist.all_reduce(whole, dist.ReduceOp.AVG)\n{CUT}"},
    "the new shards of the others never arrive: gather them after the step":
        {GATHER: f"        whole.copy_({HERE})\n        mine = whole.chunk(dist.get_world_size())[dist.get_rank()]\n"
                 "        mine.copy_(self.shard)\n"},
    "the shards are gathered before the step, so the parameters are one step behind":
        {STEP: "", GATHER: GATHER + STEP},
    "the whole gradients are still there after step(): set `.grad` to None":
        {"            parameter.grad = None\n": ""},
    "a rank updates the shard of another one: rank r owns part r":
        {"mine[dist.get_rank()]": "mine[dist.get_rank() - 1]"},
    "the optimizer begins anew in every step: its state has to stay":
        {"self.optimizer = make_optimizer([self.shard])": "self.make, self.optimizer = make_optimizer, None",
         STEP: f"        self.optimizer = self.make([self.shard])\n{STEP}"},
})  # fmt: skip
CASES = [
    {"type": "float64", "parameters": "several", "padding": "some", "models": 1, "seed": 1},
    {"type": "float32", "parameters": "several", "padding": "none", "models": 2, "seed": 2},
    {"type": "float32", "parameters": "one", "padding": "some", "models": 1, "seed": 3},
]


class TwoMeans:
    """An optimizer that keeps two numbers for each value, as Adam does, and divides by none of them."""

    def __init__(self, tensors: Any) -> None:
        self.tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        self.state: list[Sequence[torch.Tensor]] = []

    @torch.no_grad()
    def step(self) -> None:
        self.state = self.state or [(torch.zeros_like(one), torch.zeros_like(one)) for one in self.tensors]
        for one, (short, long) in zip(self.tensors, self.state, strict=True):
            if one.grad is not None:
                short.mul_(0.5).add_(one.grad)
                long.mul_(0.9).add_(one.grad)
                one.sub_(0.1 * short + 0.01 * long + 0.01 * one)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.tensors:
            one.grad = None


@exercise(OFFICIAL, CASES, title="An optimizer that shards", difficulty=2, minutes=30, ranks=(3, 2, 4))
def sharded_optimizer(case: dict[str, Any], ShardedOptimizer: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``ShardedOptimizer(parameters, make_optimizer)`` with its method ``step()``."""
    rank, ranks, seen = dist.get_rank(), dist.get_world_size(), dict[str, Any]()
    torch.manual_seed(case["seed"])
    models, made, sharded = [], [], []
    for n in range(case["models"]):
        shapes = layers.draw_shapes(case["seed"] + n, ranks, case["padding"] == "some", case["parameters"] == "one")
        models.append([nn.Parameter(torch.randn(shape, dtype=getattr(torch, case["type"]))) for shape in shapes])
        made.append(weakref.WeakSet[TwoMeans]())
    everything = [one for parameters in models for one in parameters]
    living = memory.living(*everything)
    most = MOST * sum(layers.joined(parameters, ranks).nbytes for parameters in models) // ranks
    for parameters, mine in zip(models, made, strict=True):

        def make_optimizer(tensors: Any, mine: Any = mine) -> TwoMeans:
            mine.add(one := TwoMeans(tensors))
            return one

        with watched() as wire, living:
            sharded.append(ShardedOptimizer(list(parameters), make_optimizer))
        refuse(wire.calls, "the constructor communicates: all ranks have the same parameters already")
    for step in range(STEPS):
        for n, (parameters, mine) in enumerate(zip(models, made, strict=True)):
            layers.draw_gradients(parameters, 1000 * n + 100 * step + rank)
            words = "All ranks hand in all gradients, and their shard of the parameters, with the padding"
            with explained(words), watched() as wire, living:
                sharded[n].step()
            state = sum(one.nbytes for optimizer in mine for pair in optimizer.state for one in pair)
            shard = layers.joined(parameters, ranks).nbytes // ranks
            words = "no optimizer of make_optimizer() that has done a step is kept: its state has to stay"
            refuse(not state, words)
            words = "the optimizer keeps state for more than one shard: so it is not sharded, but replicated"
            refuse(state > STATES * shard, words, measured=f"{state:,} bytes", expected=f"{STATES * shard:,} bytes")
            where = f" after step {step + 1}" + " of a second model" * n
            left = [one.grad is not None for one in parameters]
            calls = sorted(f"{call['name']} of {call['bytes']} bytes" for call in wire.calls)
            seen |= {
                f"the parameters{where}": torch.cat([one.detach().flatten() for one in parameters]),
                f"gradients that are still there{where}": sum(left),
                f"what is handed in{where}": " and ".join(calls),
            }
            held = living.now(*everything, most=most)
            words = "after a step more is held beside the parameters than the state, the shard and its gradient"
            fine = held <= most or any(left)
            refuse(not fine, words, measured=f"{held:,} bytes", expected=f"at most {most:,}")
    return seen
