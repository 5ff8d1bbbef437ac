"""Exercise 2: the class ``ShardedOptimizer(parameters, make_optimizer)`` with ``step()``: ZeRO-1."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.sharded_data_parallel import layers

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 3
RULES = ("step", "step of a second optimizer")
STATES, MOST = 2, 4  # the optimizer's state, and what may be held after a step beside the parameters, in shards


class TwoMeans:
    """An optimizer that keeps two numbers for each parameter, as Adam does, and divides by none of them."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = list(tensors)
        self.state: list[list[Tensor]] = []

    def step(self) -> None:
        import torch

        with torch.no_grad():
            if not self.state:
                self.state = [[torch.zeros_like(one), torch.zeros_like(one)] for one in self.tensors]
            for one, (short, long) in zip(self.tensors, self.state, strict=True):
                if one.grad is not None:
                    short.mul_(0.5).add_(one.grad)
                    long.mul_(0.9).add_(one.grad)
                    one.sub_(0.1 * short + 0.01 * long + 0.01 * one)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.tensors:
            one.grad = None


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (4, 2, rng.choice((3, 5))):
        kind = "float64" if not cases else rng.choice(("float64", "float32"))
        padding = rng.choice(("some", "none")) if cases else "some"
        many = {"optimizers": 2 if ranks == 2 else 1, "parameters": "one" if len(cases) == 2 else "several"}
        cases.append({"ranks": ranks, "type": kind, **many, "padding": padding, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from checks.contracts import memory

    rank, ranks = dist.get_rank(), case["ranks"]
    generator = torch.Generator().manual_seed(case["seed"])
    dtype = getattr(torch, case["type"])
    how = {"padding": case["padding"] == "some", "one": case["parameters"] == "one"}
    models = [
        [
            nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))
            for shape in layers.draw_shapes(case["seed"] + number, ranks, **how)
        ]
        for number in range(case["optimizers"])
    ]
    made: list[weakref.WeakSet[TwoMeans]] = [weakref.WeakSet() for _ in models]

    def maker(number: int) -> Any:
        def make_optimizer(tensors: Any) -> TwoMeans:
            made[number].add(one := TwoMeans([tensors] if isinstance(tensors, torch.Tensor) else tensors))
            return one

        return make_optimizer

    facts["models"] = [
        {"start": layers.joined(parameters, 1), "bytes": layers.joined(parameters, ranks).nbytes, "steps": []}
        for parameters in models
    ]
    living = memory.living(*(one for parameters in models for one in parameters))
    with living:
        sharded = [
            watch.call("ShardedOptimizer", parameters=parameters, make_optimizer=maker(number))
            for number, parameters in enumerate(models)
        ]
    for step in range(STEPS):
        for number, parameters in enumerate(models):
            layers.draw_gradients(parameters, case["seed"] + 1000 * number + 100 * step + rank)
            own = layers.joined([one.grad for one in parameters], 1)
            with living, watch.step(RULES[number], sharded[number], parameters=parameters):
                sharded[number].step()
            held = living.now(*(one for parameters in models for one in parameters)) + memory.not_tensors(*sharded)
            left = sum(one.grad is not None for one in parameters)
            state = sum(one.nbytes for optimizer in made[number] for pair in optimizer.state for one in pair)
            got = layers.joined(parameters, 1)
            found = {"own": own, "got": got, "held": held, "state": state, "left": left}
            facts["models"][number]["steps"].append(found)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number in range(case["optimizers"]):
        all_bytes = sum(one["bytes"] for one in world[0]["models"])
        yield from _judge_one([facts | facts["models"][number] | {"all bytes": all_bytes} for facts in world])


def _judge_one(world: Sequence[Facts]) -> Iterator[Broken]:
    import torch

    ranks = len(world)
    right = [torch.nn.Parameter(world[0]["start"].double().clone())]
    truth, alone = TwoMeans(right), [[torch.nn.Parameter(one["start"].double().clone())] for one in world]
    others = [TwoMeans(one) for one in alone]
    for step in range(STEPS):
        own = [facts["steps"][step]["own"].double() for facts in world]
        right[0].grad = sum(own) / ranks
        truth.step()
        for one, optimizer, gradient in zip(alone, others, own, strict=True):
            one[0].grad = gradient
            optimizer.step()
        for rank, facts in enumerate(world):
            found, where = facts["steps"][step], {"rank": rank, "call": 1 + step}
            shard = facts["bytes"] // ranks
            if found["state"] > STATES * shard:
                words = "the optimizer keeps state for more than one shard: so it is not sharded, but replicated"
                seen = f"{found['state']:,} bytes of state"
                yield Broken("memory:0 state", words, seen, f"{STATES * shard:,}: two numbers each", **where)
            elif not found["state"]:
                yield Broken("memory:0 none", "no optimizer of make_optimizer() is kept that has done a step", **where)
            elif found["held"] > (most := MOST * facts["all bytes"] // ranks):
                words = "after a step more is held beside the parameters than state, shard and its gradient"
                yield Broken("memory:1 held", words, f"{found['held']:,} bytes", f"{most:,}", **where)
            if found["left"]:
                yield Broken(
                    "value:left", "the whole gradients are still there after step(): set `.grad` to None", **where
                )
            got, dtype = found["got"], found["got"].dtype
            guesses = {
                "is that of this rank alone: gradients were not averaged": alone[rank][0].detach(),
                "is as it was before the first step: not every rank's new shard has arrived": world[0][
                    "start"
                ].double(),
            }
            terms = [right[0].detach().to(dtype)]
            yield from compare(
                "value:parameters", "the flat tensor of all parameters", got, terms, 1.0, guesses, steps=100, **where
            )


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    model = world[0]["models"][0]
    return {
        "world sizes": layers.world_sizes(played),
        f"state on each of {case['ranks']} ranks": f"{model['steps'][-1]['state']:,} bytes",
        "of one process": f"{STATES * model['start'].nbytes:,} bytes",
    }


def _step(number: int) -> Rules:
    """For a step of the optimizer of that number."""

    def wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
        whole = facts["models"][number]["bytes"]
        return {"reduce_scatter": Amount(1, whole), "all_gather": Amount(1, whole // case["ranks"])}

    return Rules(changes=(*layers.GRADIENTS, "parameters*.value", "parameters*.memory"), wire=wire)


CONTRACT = Contract(
    name="sharded_data_parallel.sharded_optimizer",
    rules={
        "ShardedOptimizer": Rules(changes=("parameters*.memory", "make_optimizer*")),
        **{name: _step(number) for number, name in enumerate(RULES)},
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *layers.MISTAKES,
        ("wire:more all_gather", "{}: each rank hands in its own shard of the parameters, and nothing else"),
        ("wire:*", "{}"),
        ("memory:0 *", "{}"),
        ("value:*", "{}"),
        ("memory:*", "{}"),
    ),
    refused=layers.REFUSED,
    figures=figures,
)
