"""Check of ``ShardedOptimizer``: parameters as of one process, the state of one shard. (ZeRO-1.)"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, memory, refuse, watched
from checks.engine.watching import explained
from checks.labs.sharded_data_parallel import layers

STEPS = 3
STATES, MOST = 2, 4  # the optimizer's state, and what may be held after a step beside the parameters, in shards
STEP, GATHER = "        self.optimizer.step()\n", "        dist.all_gather_single(whole, self.shard.detach())\n"
OFFICIAL = Reference("sharded_data_parallel", "ShardedOptimizer", {
    "the gradient is the sum over the ranks: divide by the world size": {", dist.ReduceOp.AVG": ""},
    "the shards are gathered before the step, so the parameters are one step behind":
        {STEP: "", GATHER: GATHER + STEP},
    "the whole gradients are still there after step(): set `.grad` to None":
        {"            parameter.grad = None\n": ""},
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
        self.state: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        self.state = self.state or [torch.zeros(2, *one.shape, dtype=one.dtype) for one in self.tensors]
        for one, state in zip(self.tensors, self.state, strict=True):
            if one.grad is not None:
                state[0].mul_(0.5).add_(one.grad)
                state[1].mul_(0.9).add_(one.grad)
                one.sub_(0.1 * state[0] + 0.01 * state[1] + 0.01 * one)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.tensors:
            one.grad = None


@exercise(OFFICIAL, CASES, title="An optimizer that shards", difficulty=2, minutes=30, ranks=(3, 2, 4))
def sharded_optimizer(case: dict[str, Any], ShardedOptimizer: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``ShardedOptimizer(parameters, make_optimizer)`` with its method ``step()``."""
    rank, ranks, seen = dist.get_rank(), dist.get_world_size(), dict[str, Any]()
    models = [layers.parameters(case, ranks, case["seed"] + n) for n in range(case["models"])]
    everything = [one for parameters in models for one in parameters]
    shards = sum(layers.joined(parameters, ranks).nbytes for parameters in models) // ranks
    living, made = memory.living(*everything), weakref.WeakSet[TwoMeans]()

    def make_optimizer(tensors: Any) -> TwoMeans:
        made.add(one := TwoMeans(tensors))
        return one

    with watched() as wire, living:
        sharded = [ShardedOptimizer(list(parameters), make_optimizer) for parameters in models]
    refuse(wire.calls, "the constructor communicates: all ranks have the same parameters already")
    for step in range(STEPS):
        for n, parameters in enumerate(models):
            layers.draw_gradients(parameters, 1000 * n + 100 * step + rank)
            fault = "All ranks hand in all gradients, and their shard of the parameters, with the padding"
            with explained(fault), watched() as wire, living:
                sharded[n].step()
            where = f" after step {step + 1}" + " of a second model" * n
            seen |= {
                f"what is handed in{where}": layers.handed_in(wire),
                f"the parameters{where}": torch.cat([one.detach().flatten() for one in parameters]),
                f"gradients that are still there{where}": sum(one.grad is not None for one in parameters),
            }
        state = sum(one.nbytes for optimizer in made for one in optimizer.state)
        fault = "no optimizer of make_optimizer() that has done a step is kept: its state has to stay"
        refuse(not state, fault)
        fault = "the optimizer keeps state for more than one shard: so it is not sharded, but replicated"
        refuse(state > STATES * shards, fault, measured=f"{state:,} bytes", expected=f"{STATES * shards:,} bytes")
        held = living.now(*everything, most=MOST * shards)
        fault = "after a step more is held beside the parameters than the state, the shard and its gradient"
        fine = held <= MOST * shards or any(one.grad is not None for one in everything)
        refuse(not fine, fault, measured=f"{held:,} bytes", expected=f"at most {MOST * shards:,}")
    return seen
