"""Exercise 3: ``shift(tensor)`` sends to the right neighbour and receives from the left one."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.torchrun import talk

TYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
CALLS = 2  # with other numbers of the same shape and type


def draw(rng: random.Random) -> list[Case]:
    """A few numbers, many (they fit into no socket's buffer), a single one, none, several dimensions."""
    shapes = [
        (rng.randint(2, 9),),
        (rng.randint(60_000, 90_000),),
        (),
        (0,),
        (rng.randint(1, 3), rng.randint(2, 4)),
        (1, rng.randint(2, 5), rng.randint(1, 3)),
    ]
    first, *more = rng.sample(sorted(set(TYPES) - {"bool"}), len(TYPES) - 1)
    types = itertools.cycle([first, "bool", *more])  # (a few bools may be those of another rank by chance)
    return [
        {"ranks": ranks, "shape": str(list(shape)), "type": next(types), "seed": rng.getrandbits(30)}
        for ranks in (3, rng.choice((4, 5)), 2, 1)
        for shape in (shapes if ranks > 1 else (shapes[0], shapes[4]))
    ]


def _shape(case: Case) -> list[int]:
    return [int(one) for one in case["shape"].strip("[]").split(",") if one]


def _bytes(case: Case) -> int:
    return math.prod(_shape(case)) * TYPES[case["type"]]


def numbers(case: Case, rank: int, call: int) -> Any:
    """What a rank has: all digits of its type. Ranks and calls differ in every element, if a type has enough values."""
    import torch

    shape, dtype = _shape(case), getattr(torch, case["type"])
    if dtype is torch.bool:
        generator = torch.Generator().manual_seed(case["seed"] + rank + 10 * call)
        return torch.randint(2, shape, generator=generator).bool()
    numbers = torch.arange(math.prod(shape)).reshape(shape) % 40 + 41 * rank + case["seed"] % 10 + call
    if dtype is torch.uint8:
        return numbers.to(dtype)
    if dtype.is_floating_point:
        made = ((numbers - 100).double() / 3).to(dtype)
        if made.numel() > 4:
            made.view(-1)[:3] = torch.tensor([-0.0, math.nan, math.inf])
        return made
    return ((numbers - 100) * (torch.iinfo(dtype).max // 128)).to(dtype)


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    from checks.contracts.snapshot import digest

    returned, facts["results"] = [], []
    for call in range(CALLS):
        tensor = numbers(case, dist.get_rank(), call)
        got = watch.call("shift", tensor=tensor)
        result = {"kind": type(got).__name__}
        facts["results"].append(result)
        if isinstance(got, torch.Tensor):
            result["got"] = got.clone()
            result["own"] = got.numel() == 0 or got.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
            returned.append(got)
    facts["overwritten"] = not all(
        digest(one) == digest(result["got"]) for one, result in zip(returned, facts["results"], strict=False)
    )


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for call in range(CALLS):
        before = [numbers(case, rank, call) for rank in range(len(world))]
        for rank, facts in enumerate(world):
            for one in _judge_one(facts["results"][call], before, rank):
                yield one.at(call=call)
    for rank, facts in enumerate(world):
        if facts["overwritten"]:
            words = "what came back from one call is overwritten by the next: it has to be a tensor of its own"
            yield Broken("value:own", words, rank=rank)


def _judge_one(result: Facts, before: Sequence[Any], rank: int) -> Iterator[Broken]:
    from checks.contracts.snapshot import digest

    n = len(before)
    if "got" not in result:
        yield Broken("value:kind", "shift returns a tensor", f"a {result['kind']}", "a Tensor", rank)
        return
    got, right = result["got"], before[(rank - 1) % n]
    if (got.shape, got.dtype) != (right.shape, right.dtype):
        measured, expected = (f"{list(one.shape)} {one.dtype}" for one in (got, right))
        yield Broken("value:type", "what comes back has another shape or data type", measured, expected, rank)
    elif digest(got) != digest(right):  # bit for bit, also where it is no number
        senders = [sender for sender in range(n) if digest(got) == digest(before[sender])]
        yield from _wrong_sender(senders, rank, n)
    elif not result["own"]:
        words = "what comes back shares its memory with the tensor that was given: whoever changes one changes both"
        yield Broken("value:own", words, rank=rank)


def _wrong_sender(senders: list[int], rank: int, n: int) -> Iterator[Broken]:
    left, right = (rank - 1) % n, (rank + 1) % n
    measured = f"that of rank {senders[0]}" if senders else "the tensor of no rank"
    figures = measured, f"that of rank {left}"
    if rank in senders:
        yield Broken("value:kept", "shift gives a rank its own tensor back: nothing was exchanged", *figures, rank)
    elif right in senders:
        yield Broken(
            "value:round", "shift goes the wrong way round: send to rank + 1, receive from rank - 1", *figures, rank
        )
    elif not senders:
        words = "shift returns before the neighbour's tensor is there, or not all of its digits: was the receiving "
        words += "waited for, in the same type?"
        yield Broken("value:early", words, *figures, rank)
    else:
        yield Broken("value:sender", "shift gives the tensor of a rank that is not the left neighbour", *figures, rank)


def _wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    n, nbytes = case["ranks"], _bytes(case)
    if n == 1:
        return {}
    return {"send": Amount(1, nbytes, peer=(rank + 1) % n), "recv": Amount(1, nbytes, peer=(rank - 1) % n)}


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {
        "ranks": talk.world_sizes(played),
        "tensors": len(played),
        "each rank sends": "its tensor, once, to one neighbour",
    }


CONTRACT = Contract(
    name="torchrun.neighbours",
    rules={"shift": Rules(wire=_wire, same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("wire:self", "{}, and gloo cannot send to itself: with one rank, both neighbours are that rank. Make a copy"),
        ("wire:other send", "{}: with one rank there is nobody to send to"),
        ("wire:other recv", "{}: with one rank there is nobody to receive from"),
        ("wire:other *", "{}: each rank has one tensor for one neighbour, and this moves more. Repair the order"),
        ("value:round", "{}"),
        ("wire:alone", "{}"),
        ("wire:misfit", "{}"),
        ("wire:unwaited *", "{}: until then nobody knows whether it has left, or arrived"),
        ("wire:changed *", "{}"),
        ("state:tensor.value", "{}: it was changed, maybe while it was on its way"),
        ("value:kept", "{}"),
        ("wire:peer *", "{}: to rank + 1, from rank - 1"),
    ),
    figures=figures,
)
