"""What the exercises on all-reduces share: only messages, to whom they go, what they weigh, what is summed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Facts, compare
from checks.parameter_server_and_all_reduce import traces

TYPES = ("float32", "float16", "int32", "int16", "uint8")
LARGE = 100_000  # elements of the case in which memory is counted exactly
SMALL = 512  # bytes: a few numbers in a tensor are nothing
EDGE = 3  # elements on both sides of the tensor, which belong to somebody else

FIRST = (
    ("wire:self", "{}: with world size 1 there is nothing to send"),
    ("wire:other send", "{}: with world size 1 there is nothing to send"),
    ("wire:misfit", "{} chunk"),
)
MESSAGES = (
    ("wire:alone", "{}"),
    ("wire:other *", "{}: only messages from one rank to another, isend and irecv too, and no collective"),
    ("wire:unwaited *", "{}. Otherwise nobody knows whether the message has left, or arrived"),
    ("wire:changed *", "{}. Until then the old numbers may still be on their way"),
    ("value:left", "{}"),
    ("wire:peer *", "{}: in a ring rank r sends to rank r + 1 only, and receives from rank r − 1"),
)


def messages(record: dict[str, Any]) -> list[tuple[str, int | None, int, str]]:
    """Of a step: send or recv, the other rank, bytes, type."""
    return [(call["name"], call["peer"], call["bytes"], call["dtype"]) for call in record.get("calls", ())]


def worlds_in(played: Sequence[tuple[Case, Sequence[Facts]]]) -> str:
    return ", ".join(str(ranks) for ranks in dict.fromkeys(case["ranks"] for case, _ in played))


def sends_of(facts: Facts) -> list[tuple[int, int]]:
    """To whom, and how many bytes."""
    return [(peer, nbytes) for name, peer, nbytes, _ in facts["messages"] if name == "send"]


def judge_direction(world: Sequence[Facts]) -> Iterator[Broken]:
    """A ring that runs the other way round."""
    n, peers = len(world), [{peer for peer, _ in sends_of(facts)} for facts in world]
    if n > 2 and peers == [{(rank - 1) % n} for rank in range(n)]:
        yield Broken(
            "value:left", "your ring runs to the left: rank r sends to rank r + 1", "every rank sends to r - 1"
        )


def draw_tensors(rng: random.Random, ranks: int, large: bool) -> list[Case]:
    """Cases for a world: what tells most comes first. A ``large`` one tells most about memory, and is not cheap."""
    lengths = [ranks * rng.randint(2, 5) + rng.randint(1, ranks - 1) if ranks > 1 else 5]
    kinds = ["trace"]
    if ranks > 1:
        lengths += [
            rng.randint(1, ranks - 1),
            ranks * rng.randint(1, 9),
            lengths[0],  # of another type, for who keeps a place of this length for the next call
            LARGE * large + rng.randint(30, 99),
        ]
        kinds += ["trace", "int64", rng.choice(TYPES), "float64"]
    lengths.append(rng.randint(300, 2000))  # after a large one of its type, for who keeps the largest place so far
    kinds.append("float64" if ranks > 1 else "int64")
    return [
        {"ranks": ranks, "length": length, "type": kind, "calls": 1 + (number == 2), "seed": rng.getrandbits(30)}
        for number, (length, kind) in enumerate(zip(lengths, kinds, strict=True))
    ]


def numbers(case: Case, rank: int) -> Any:
    """What a rank has before the all-reduce."""
    import torch

    if case["type"] == "trace":
        return traces.numbers(case["length"], rank)
    dtype, generator = getattr(torch, case["type"]), torch.Generator().manual_seed(case["seed"] + rank)
    if dtype.is_floating_point:
        return torch.randn(case["length"], generator=generator, dtype=torch.float64).to(dtype)
    # Too large for the digits of a float of as many bytes, and a sum of five is none too many.
    most = {"int64": 2**60, "int32": 2**28, "int16": 2**12, "uint8": 51}[case["type"]]
    return torch.randint(most // 2, most, (case["length"],), generator=generator).to(dtype)


def chunk_bytes(case: Case, parts: int, elements: int | None = None) -> int:
    """Of the largest of so many parts."""
    return math.ceil((case["length"] if elements is None else elements) / parts) * item(case)


def item(case: Case) -> int:
    return {"trace": 8, "int64": 8, "float64": 8, "int16": 2, "float16": 2, "uint8": 1}.get(case["type"], 4)


def play(case: Case, watch: Any, facts: Facts, function: str, *arguments: int) -> None:
    """Call the all-reduce with a tensor that is a part of a longer one; twice, with the same numbers again, if the case
    says so: a gradient lies at the same place in every step."""
    import torch
    import torch.distributed as dist

    from checks.contracts import memory

    mine = numbers(case, dist.get_rank())
    base = torch.ones(len(mine) + 2 * EDGE, dtype=mine.dtype)
    tensor = base[EDGE:-EDGE]
    around = [base[:EDGE], base[-EDGE:]]
    for call in range(case["calls"]):
        tensor.copy_(mine)
        with (
            watch.step(function, tensor=tensor, around=around) as record,
            memory.held(base, python=case["length"] >= LARGE) as held,
        ):
            watch.answers[function](tensor, *arguments)
        facts |= {"after": tensor.clone(), "held": held, "messages": messages(record)}
        if not call:
            facts["after one call"] = facts["after"]
    storage = memory.StorageWeakRef(base.untyped_storage())
    del base, tensor, around
    facts["kept"] = case["calls"] > 1 and memory.is_kept(storage)


def judge_sum(
    case: Case,
    world: Sequence[Facts],
    shape: tuple[int, int] | None = None,
    talked: bool = True,
    workers: int | None = None,
) -> Iterator[Broken]:
    """Every rank has the sum of all.

    Args:
        shape: nodes and ranks per node, where that matters.
        talked: whether anything went from node to node.
        workers: so many ranks do more than hand in a tensor and get the sum back.
    """
    import torch

    before = [numbers(case, rank) for rank in range(len(world))]
    working = list(zip(world, before, strict=True))[:workers]
    firsts, afters = ([facts[name] for facts in world] for name in ("after one call", "after"))
    if not all(torch.equal(first, after) for first, after in zip(firsts, afters, strict=True)):
        words = "the second call with the same tensor and the same numbers gives others than the first: each call is a "
        yield Broken(
            "value:again", f"{words}new all-reduce, also of the same memory, so keep nothing of the one before"
        )
        return
    if len(world) > 1 and all(torch.equal(facts["after"], own) for facts, own in working):
        words = "the tensor is what it was before: work in place. `tensor = …` inside a function only renames; "
        yield Broken("value:renamed", f"{words}`chunk += …`, `chunk.copy_(…)` and recv change it")
        return
    if before[0].dtype.is_floating_point:
        total = sum(one.double() for one in before)
        guesses = {"is the average: an all-reduce gives the sum": total / len(world)} if len(world) > 1 else {}
        for rank, facts in enumerate(world):
            yield from compare("value:sum", "the tensor", facts["after"], before, 1.0, guesses, rank=rank)
        return
    total = sum(one.long() for one in before).to(before[0].dtype)
    if all(torch.equal(facts["after"], total) for facts in world):
        return
    others = {dtype for facts in world for *_, dtype in facts["messages"] if "float" in dtype}
    if case["type"] == "trace" and not others:
        what = traces.what_was_added([facts["after"].tolist() for facts in world], shape, talked)
        yield Broken("value:trace", what)
        return
    rank = next(rank for rank, facts in enumerate(world) if not torch.equal(facts["after"], total))
    place = int((world[rank]["after"] != total).nonzero()[0])
    got, right = int(world[rank]["after"][place]), int(total[place])
    words = f"integers travel as {min(others)}, and " if others else ""
    words += f"element {place} has not the sum, digit by digit"
    if others or abs(got - right) < right / 1000:
        words += ": integers stay integers, a float has not enough digits for them"
    yield Broken("value:digits", words, got, right, rank=rank)


def judge_memory(case: Case, world: Sequence[Facts], limits: Sequence[int], what: str) -> Iterator[Broken]:
    """No rank holds more than its limit in bytes beside its tensor. ``what``: the limit in words."""
    for rank, (facts, chunk) in enumerate(zip(world, limits, strict=True)):
        held = facts["held"]
        words = "more than its tensor and one part of it is held at the same time"
        if held["tensors"] > chunk + SMALL:
            why = f"add in place (chunk += received), and copy or pad nothing. The limit is {what}"
            seen = f"{held['tensors']:,} bytes beside the tensor"
            yield Broken("value:memory", f"{words}: {why}", seen, f"at most {chunk:,}", rank=rank)
        elif held["python"] > chunk + SMALL:
            seen = f"{held['python']:,} bytes in arrays, lists or bytes"
            yield Broken(
                "value:memory", f"{words}: numpy's arrays count as well", seen, f"at most {chunk:,}", rank=rank
            )
        elif facts["kept"]:
            words = (
                "after the call the tensor's memory is held by your function, by a view of it say, in a global or an "
            )
            words += "attribute: its owner cannot free it, and with the next tensor a rank holds two"
            yield Broken("value:kept", words, rank=rank)
