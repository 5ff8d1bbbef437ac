"""The evaluation: what the checks of its sampler and of its accuracy run, and how they judge it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from utils.algorithms.recorder import record_collectives
from utils.checks.compare import expect
from utils.checks.feeding_the_ranks.samplers import Deal, Facts, Numbered, generators, judge_indices
from utils.checks.verdicts import Wrong


def evaluation(Sampler: Any, deals: list[Deal]) -> list[Facts]:
    """What an evaluation sampler gives to all ranks, for each deal."""
    found = []
    for deal in deals:
        data, before = Numbered(deal.length), generators()
        samplers = [Sampler(data, deal.world_size, rank) for rank in range(deal.world_size)]
        shares = [list(sampler) for sampler in samplers]
        found.append(
            {
                "lengths": [len(sampler) for sampler in samplers],
                "shares": shares,
                "again": [list(sampler) for sampler in samplers],
                "kinds": sorted({type(index).__name__ for share in shares for index in share} - {"int"}),
                "drawn from": [name for name, state in generators().items() if state != before[name]],
            }
        )
    return found


def judge_evaluation(deal: Deal, facts: Facts) -> None:
    """Look at one deal; raise Wrong with the likely mistake."""
    shares = facts["shares"]
    sizes = [len(share) for share in shares]
    where = f"See {str(deal).split(', drop')[0]}"
    judge_indices(deal, facts["kinds"], [shares])
    counts = Counter(index for share in shares for index in share)
    if deal.world_size > 1 and sizes == [deal.length] * deal.world_size and deal.length > 1:
        raise Wrong(f"every rank evaluates the whole data set: that is right, and takes N times the work. {where}.")
    if twice := [index for index, count in counts.items() if count > 1]:
        raise Wrong(
            f"samples are evaluated more than once and weigh more than the others: no padding here. {where}",
            measured=f"{len(twice)} of {deal.length} more than once",
            expected="none",
        )
    if missing := [index for index in range(deal.length) if not counts[index]]:
        raise Wrong(f"samples are never evaluated. {where}", measured=f"{len(missing)} of {deal.length} are missing")
    if max(sizes) - min(sizes) > 1:
        raise Wrong(
            f"the shares are not even: they may differ by one sample, and the largest sets the pace. {where}",
            measured=sizes,
        )
    if facts["lengths"] != sizes:
        raise Wrong(
            f"len(sampler) is not the number of indices of this rank. {where}",
            measured=facts["lengths"],
            expected=sizes,
        )
    if facts["again"] != shares:
        raise Wrong(f"the second evaluation gets other indices than the first: __iter__ begins anew. {where}.")
    if facts["drawn from"] or any(share != sorted(share) for share in shares):
        raise Wrong(f"an evaluation needs no shuffling: let the indices of each rank rise. {where}.")


def accuracies(accuracy: Any, cases: list[tuple[tuple[int, int], ...]]) -> list[Facts]:
    """On every rank: what ``accuracy(correct, seen)`` returns, and what it says to the others."""
    import torch.distributed as dist

    found = []
    for case in cases:
        with record_collectives() as record:
            result = accuracy(*case[dist.get_rank()])
        found.append({"result": result, "calls": record.plain()})
    return found


def judge_accuracy(case: tuple[tuple[int, int], ...], per_rank: list[Facts], most_bytes: int) -> None:
    """Look at one set of counts; ``per_rank`` holds what each rank found."""
    right = sum(correct for correct, _ in case) / sum(seen for _, seen in case)
    shown = ", ".join(f"{correct} of {seen}" for correct, seen in case)
    where = f"See ranks with {shown} right"
    results = [facts["result"] for facts in per_rank]
    shown_results = [round(result, 4) if isinstance(result, float) else result for result in results]
    figures = {"measured": shown_results, "expected": f"{right:.4f} on every rank"}
    numbers = [float(result) if isinstance(result, int | float) else None for result in results]
    if None in numbers:
        raise Wrong(f"accuracy returns a plain number on every rank: .item() makes one of a tensor. {where}", **figures)
    good = [abs(number - right) < 1e-6 for number in numbers]
    own = [correct / seen if seen else None for correct, seen in case]
    if not all(good):
        wrong = numbers[good.index(False)]
        means = [one for one in own if one is not None]
        if any(good):
            raise Wrong(f"not all ranks have the accuracy: every rank needs it. {where}", **figures)
        if any(abs(wrong - sum(means) / count) < 1e-6 for count in {len(means), len(case)}) and len(case) > 1:
            raise Wrong(
                f"this is the mean of the ranks' accuracies: a rank with fewer samples then weighs as much as the "
                f"others. Add up the counts first, and divide then. {where}",
                **figures,
            )
        if numbers == [one or 0.0 for one in own] and len(case) > 1:
            raise Wrong(f"this is the rank's own accuracy: ask the others. {where}", **figures)
        expect(f"The accuracy of all samples is not right. {where}", wrong, right, absolute=1e-6)
    for facts in per_rank:
        handed_in = sum(call["bytes"] for call in facts["calls"])
        if len(facts["calls"]) > 1 or handed_in > most_bytes:
            raise Wrong(
                "two numbers need one collective: put them into one tensor",
                measured=f"{len(facts['calls'])} collectives, {handed_in} bytes",
                expected=f"1 collective of at most {most_bytes} bytes",
            )
