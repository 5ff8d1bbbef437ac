"""Exercise 2: ``ring_all_reduce(tensor)``, in place, by messages to the right neighbour."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.parameter_server_and_all_reduce import ring_messages
from checks.parameter_server_and_all_reduce.ring_messages import chunk_bytes, sends_of


def draw(rng: random.Random) -> list[Case]:
    sizes = {rng.choice((4, 5)): 6, 3: 3, 2: 3, 1: 2}  # and how many cases
    return [case for ranks, few in sizes.items() for case in ring_messages.draw_tensors(rng, ranks, ranks > 3)[:few]]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    ring_messages.play(case, watch, facts, "ring_all_reduce")


def _wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    """2(N − 1)/N of the bytes, give or take two chunks: in each phase another one is not sent, and some are empty."""
    n, whole = case["ranks"], case["length"] * ring_messages.item(case)
    target, around, steps = 2 * (n - 1) * whole / n, 2 * chunk_bytes(case, n), 2 * (n - 1)
    if not steps:
        return {}
    amount = {"calls": steps, "bytes": int(target + around), "least": max(0, int(target - around))}
    return {"send": Amount(**amount, peer=(rank + 1) % n), "recv": Amount(**amount, peer=(rank - 1) % n)}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    n, chunk = len(world), chunk_bytes(case, len(world))
    yield from ring_messages.judge_direction(world)
    yield from ring_messages.judge_sum(case, world)
    for rank, facts in enumerate(world):
        sent = [nbytes for _, nbytes in sends_of(facts)]
        if sent and max(sent) > chunk:
            whole = case["length"] * ring_messages.item(case)
            what = "the whole tensor" if max(sent) >= whole else "more than one chunk"
            words = f"it sends {what} in one message: cut the tensor into {n} chunks and send one in each step"
            seen = f"{max(sent):,} bytes in a message, {sum(sent):,} in all"
            right = f"at most {chunk:,} in a message, about {2 * (n - 1) * whole / n:,.0f} in all"
            yield Broken("value:0 whole", words, seen, right, rank=rank)
    yield from ring_messages.judge_memory(case, world, [chunk] * len(world), "a chunk of S/N")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = next((case, world) for case, world in played if case["length"] >= ring_messages.LARGE)
    whole, sent = case["length"] * ring_messages.item(case), max(sum(n for _, n in sends_of(one)) for one in world)
    return {
        "world sizes": ring_messages.worlds_in(played),
        "all-reduces": len(played),
        f"a rank of {case['ranks']} sends, for {whole:,} bytes": f"{sent:,} bytes",
        "memory": "the tensor and one chunk",
    }


CONTRACT = Contract(
    name="parameter_server_and_all_reduce.ring",
    rules={"ring_all_reduce": Rules(changes=("tensor.value",), wire=_wire, same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *ring_messages.FIRST,
        *ring_messages.MESSAGES,
        ("value:0 *", "{}"),
        ("value:*", "{}"),
        ("wire:pieces send", "it sends more often than a ring needs: N − 1 messages to add up, N − 1 to hand out"),
        ("wire:more send", "{}: 2(N − 1)/N · S"),
        ("state:around*", "it writes beyond the ends of its tensor, where other numbers are"),
    ),
    figures=figures,
)
