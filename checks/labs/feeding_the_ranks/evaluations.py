"""Checks of ``EvaluationSampler``, which gives every sample once, and of ``accuracy`` over all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, leaves, refuse, same, watched
from checks.engine.plain import kind_of
from checks.labs.feeding_the_ranks.dealing import Numbered, begins_anew, dealt, often

INDICES, ALL = "        self.indices = range(rank, len(dataset), world_size)\n", "range(rank, len(dataset), world_size)"
SHARE = "        share = len(dataset) // world_size\n"
COUNTS, QUOTIENT = "torch.tensor([correct, seen])", "(counts[0] / counts[1]).item()"
SAMPLER = Reference("feeding_the_ranks", "EvaluationSampler", {
    "every rank evaluates the whole data set: that is right, and takes N times the work": {ALL: "range(len(dataset))"},
    "the tail is never evaluated: without padding, some ranks have one sample more":
        {INDICES: SHARE + "        self.indices = range(rank * share, (rank + 1) * share)\n"},
    "samples are evaluated more than once and weigh more than the others: no padding here":
        {INDICES: "        self.indices = [i % len(dataset) for i in range(rank, -(-len(dataset) // world_size) * "
                  "world_size, world_size)]\n"},
    "all that is left over falls to the last rank: shares differ by one sample at most, and the largest sets the pace":
        {INDICES: SHARE + "        last = rank == world_size - 1\n"
                  "        self.indices = range(rank * share, len(dataset) if last else (rank + 1) * share)\n"},
    "blocks that are rounded up leave little for the last ranks: shares differ by one sample at most":
        {INDICES: "        share = -(-len(dataset) // world_size)\n"
                  "        self.indices = range(len(dataset))[rank * share : (rank + 1) * share]\n"},
    "one rank evaluates all, and the others wait": {ALL: "range(0 if rank else len(dataset))"},
    "len(sampler) is rounded up: it is the number of indices of this rank":
        {INDICES: INDICES + "        self.share = -(-len(dataset) // world_size)\n",
         "return len(self.indices)": "return self.share"},
})  # fmt: skip
ACCURACY = Reference("feeding_the_ranks", "accuracy", {
    "this is the mean of the ranks' accuracies, so few samples weigh as much as many: add up the counts, divide then":
        {COUNTS: "torch.tensor([correct / max(seen, 1), 1.0])"},
    "this is the rank's own accuracy: ask the others": {QUOTIENT: "correct / max(seen, 1)"},
    "this is the part that is wrong: the accuracy is the part that is right": {QUOTIENT: "1 - " + QUOTIENT},
})  # fmt: skip
OFFICIAL = Reference("feeding_the_ranks", "EvaluationSampler accuracy", {**SAMPLER.mistakes, **ACCURACY.mistakes})
CASES = [
    {"correct_and_seen": counts}
    for counts in ([(8, 10), (1, 10), (3, 4)], [(2, 9), (0, 0), (5, 7)], [(200, 300), (70_000, 70_000), (0, 6)],
                   [(3 * 10**9, 6 * 10**9), (1, 3 * 10**9), (2**24 + 1, 2**25)], [(4, 4), (6, 6), (2, 2)])
]  # fmt: skip
COUNT_BYTES = 16  # two numbers


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """The smallest first; then the text's example, and any."""
    some = (2, 4), (2, 5), (4, 101), (5, 2), (1, 7)
    ranks = rng.randint(2, 5)
    ranks, samples = some[number] if number < len(some) else (ranks, rng.randint(ranks, 125))
    return {"ranks": ranks, "samples": samples}


def play_sampler(case: dict[str, Any], EvaluationSampler: Callable[..., Any]) -> dict[str, Any]:
    ranks, samples = case["ranks"], case["samples"]
    with leaves():
        mine = [EvaluationSampler(Numbered(samples), ranks, rank) for rank in range(ranks)]
        shares, lengths, again = dealt(mine, samples), [len(sampler) for sampler in mine], dealt(mine, samples)
        words = "the second evaluation gets other indices than the first: __iter__ begins anew"
        refuse(again != shares, words)
        begins_anew(mine[0], shares[0])
    once, rising = often(shares, samples) == [1, 1], all(share == sorted(share) for share in shares)
    refuse(once and not rising, "an evaluation needs no shuffling: let the indices of each rank rise")
    return {
        "the numbers of indices of the ranks, the smallest first": sorted(len(share) for share in shares),
        "how often the rarest sample and the most frequent one come": often(shares, samples),
        "whether len(sampler) is the number of its indices": lengths == [len(share) for share in shares],
    }


def play_accuracy(case: dict[str, Any], accuracy: Callable[..., Any]) -> dict[str, Any]:
    counts = case["correct_and_seen"][: dist.get_world_size()]
    with leaves(), watched(allowed=("all_reduce", "all_gather")) as seen:
        result = accuracy(*counts[dist.get_rank()])
    words = "the result is no plain float: every rank returns one (.item() makes one of a tensor)"
    refuse(not isinstance(result, float), words, measured=kind_of(result))
    if same(result, sum(correct for correct, _ in counts) / sum(samples for _, samples in counts)):
        words = "two numbers need one collective of at most 16 bytes: put them into one tensor"
        told = f"{len(seen.calls)} collectives, {seen.sent()} bytes"
        refuse(len(seen.calls) > 1 or seen.sent() > COUNT_BYTES, words, measured=told)
        small = [call["dtype"] for call in seen.calls if call["dtype"] in ("float32", "float16", "bfloat16")]
        words = f"counts travel as {small and small[0]}, which has no room for 16,777,217, say: take int64"
        refuse(small, words)
    return {"the accuracy": result}
