"""The training sampler: what its check runs, and how it judges what it saw.

A probe deals the samples out to all ranks in one process, for many world sizes and lengths, and returns plain lists.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from utils.checks.verdicts import Wrong

Shares = list[list[int]]  # indices of each rank, rank 0 first
Facts = dict[str, Any]

EPOCHS = range(4)
AGAIN = 1  # this epoch is dealt three times
MANY = 20  # with so many samples, two random orders are not equal by chance


@dataclass(frozen=True)
class Deal:
    """One data set on some ranks."""

    length: int
    world_size: int
    drop_last: bool = False
    seed: int = 0

    def __str__(self) -> str:
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        return f"{self.length} sample{'s' if self.length > 1 else ''} on {ranks}, drop_last={self.drop_last}"

    @property
    def share(self) -> int:
        """Samples of each rank: rounded up with padding, rounded down without the rest."""
        return self.length // self.world_size if self.drop_last else -(-self.length // self.world_size)


class Numbered:
    """A data set that has a length, and whose samples a sampler has no business to read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:  # ``for … in`` and ``list`` come here too
        raise Wrong("the sampler reads samples of the data set: it needs the length alone, and gives indices.")


# --- the training sampler --------------------------------------------------------------------------------------


def training(Sampler: Any, deals: list[Deal]) -> list[Facts]:
    """What a training sampler gives to all ranks, for each deal."""
    from torch.utils.data.distributed import DistributedSampler

    def refuse(*_: Any, **__: Any) -> None:
        raise Wrong("this is torch's DistributedSampler: write the dealing yourself, it is a few lines.")

    DistributedSampler.__iter__ = refuse  # type: ignore[method-assign]
    return [_dealt(Sampler, deal) for deal in deals]


def _dealt(Sampler: Any, deal: Deal) -> Facts:
    def make(deal: Deal = deal) -> list[Any]:
        data = Numbered(deal.length)
        return [Sampler(data, deal.world_size, rank, deal.seed, deal.drop_last) for rank in range(deal.world_size)]

    def dealt(samplers: list[Any], epoch: int | None = None) -> Shares:
        for sampler in samplers:
            if epoch is not None:
                sampler.set_epoch(epoch)
        return [list(sampler) for sampler in samplers]

    before = generators()
    samplers = make()
    facts: Facts = {"lengths": [len(sampler) for sampler in samplers]}
    facts["unset"] = dealt(samplers)
    facts["unset twice"] = dealt(samplers)
    facts["epochs"] = [dealt(samplers, epoch) for epoch in EPOCHS]
    facts["drawn from"] = [name for name, state in generators().items() if state != before[name]]
    facts["again"] = dealt(samplers, AGAIN)
    _stir()
    facts["fresh"] = dealt(make(), AGAIN)
    facts["other seed"] = dealt(make(replace(deal, seed=deal.seed + 100)), 0)
    everything = [facts["unset"], *facts["epochs"]]
    kinds = {type(index).__name__ for shares in everything for share in shares for index in share}
    facts["kinds"] = sorted(kinds - {"int"})
    return facts


def generators() -> dict[str, bytes | str]:
    """The state of every global generator of random numbers."""
    import numpy
    import torch

    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": repr(random.getstate()),
        "numpy": repr(numpy.random.get_state(legacy=False)),
    }


def _stir() -> None:
    """Give the global generators another state; nothing may depend on it."""
    import numpy
    import torch

    torch.manual_seed(4711)
    random.seed(4711)
    numpy.random.seed(4711)


def judge_training(deal: Deal, facts: Facts) -> None:
    """Look at one deal; raise Wrong with the likely mistake."""
    judge_indices(deal, facts["kinds"], [facts["unset"], *facts["epochs"]])
    if facts["drawn from"]:
        raise Wrong(
            f"the sampler draws from the global generator of {facts['drawn from'][0]} (or seeds it), which the model "
            "needs too: make a generator of its own, torch.Generator().manual_seed(…)."
        )
    for epoch, shares in zip(EPOCHS, facts["epochs"], strict=True):
        where = f"See epoch {epoch} of {deal}"
        _judge_sizes(deal, shares, where)
        _judge_coverage(deal, shares, where)
    if facts["lengths"] != [deal.share] * deal.world_size:
        raise Wrong(
            f"len(sampler) is not the number of indices of this rank: progress bars and learning-rate schedules rely "
            f"on it. See {deal}",
            measured=facts["lengths"],
            expected=[deal.share] * deal.world_size,
        )
    if deal.length >= MANY:
        _judge_epochs(deal, facts)


def judge_indices(deal: Deal, kinds: list[str], dealt: list[Shares]) -> None:
    """Plain ints that name samples."""
    if kinds:
        raise Wrong(f"a sampler gives plain ints, and this one gives a {kinds[0]}: .tolist() makes ints of a tensor.")
    strange = [i for shares in dealt for share in shares for i in share if not 0 <= i < deal.length]
    if strange:
        raise Wrong(f"there is no sample {strange[0]}: indices go from 0 to {deal.length - 1}.")


def _judge_sizes(deal: Deal, shares: Shares, where: str) -> None:
    """Every rank gets the same number, and the right one."""
    sizes = [len(share) for share in shares]
    figures = {"measured": sizes, "expected": [deal.share] * deal.world_size}
    if len(set(sizes)) > 1:
        why = "a rank with fewer samples ends its epoch while the others wait for it"
        if not deal.drop_last and deal.length * 2 < deal.world_size:
            why = "the padding is longer than the data set: repeat the samples as often as needed"
        raise Wrong(f"the ranks have different numbers of samples: {why}. {where}", **figures)
    if sizes[0] == deal.share:
        return
    if sizes[0] == deal.length and deal.world_size > 1:
        raise Wrong(f"every rank has the whole data set: a rank takes its own share. {where}", **figures)
    if deal.drop_last and sizes[0] > deal.share:
        raise Wrong(f"drop_last is True, so what does not fill a round is left out, not padded. {where}", **figures)
    if not deal.drop_last and sizes[0] < deal.share:
        raise Wrong(f"drop_last is False, so no sample may be lost: pad instead. {where}", **figures)
    raise Wrong(f"each rank needs the smallest equal share. {where}", **figures)


def _judge_coverage(deal: Deal, shares: Shares, where: str) -> None:
    """All samples, once, as far as equal shares allow."""
    counts = Counter(index for share in shares for index in share)
    missing = [index for index in range(deal.length) if not counts[index]]
    twice = sorted(index for index, count in counts.items() if count > 1)
    if deal.world_size > 1 and deal.length >= deal.world_size and len({frozenset(share) for share in shares}) == 1:
        raise Wrong(f"all ranks have the same samples: rank r takes every N-th one, from r on. {where}.")
    if twice and (deal.drop_last or missing):
        raise Wrong(
            "samples are missing, and others come more than once: all ranks make the same order, from seed and epoch "
            f"and nothing else, and then deal it out. {where}",
            measured=f"{len(missing)} of {deal.length} missing, {len(twice)} repeated",
        )
    if not deal.drop_last and max(counts.values()) - min(counts.values()) > 1:
        often, times = counts.most_common(1)[0]
        raise Wrong(
            f"the padding takes the same sample again and again: no sample twice more than another. {where}",
            measured=f"sample {often} comes {times} times",
            expected=f"at most {min(counts.values()) + 1} times",
        )


def _judge_epochs(deal: Deal, facts: Facts) -> None:
    epochs, where = facts["epochs"], f"See {deal}"
    if all(share == sorted(share) for share in epochs[0]) and deal.share > 2:
        raise Wrong(f"the samples are not shuffled. {where}.")
    for number in EPOCHS[1:]:
        same = next((other for other in range(number) if epochs[other] == epochs[number]), None)
        if same is not None:
            raise Wrong(
                f"set_epoch does not change the order: epochs {same} and {number} are alike. {where}.",
            )
    if facts["unset twice"] != facts["unset"] or facts["again"] != epochs[AGAIN]:
        raise Wrong(
            "the same epoch gives another order the second time: the order comes from seed and epoch alone, so a new "
            f"generator is needed each time. {where}."
        )
    if facts["fresh"] != epochs[AGAIN]:
        raise Wrong(
            "a new sampler gives epoch 1 another order than one that has been through epoch 0: then no run can be "
            f"resumed. {where}."
        )
    if facts["unset"] != epochs[0]:
        raise Wrong(f"before the first set_epoch, the epoch is 0. {where}.")
    if facts["other seed"] == epochs[0]:
        raise Wrong(f"the seed does not change the order. {where}.")
    if deal.world_size > 1 and deal.share > 3 and all(_owners(shares) == _owners(epochs[0]) for shares in epochs):
        raise Wrong(
            f"each rank keeps the samples that it had, and only shuffles those: shuffle first, deal then. {where}."
        )
    pairs, others = _neighbours(epochs[0]), _neighbours(epochs[1])
    if deal.share > 3 and len(pairs & others) > len(pairs) / 2:
        raise Wrong(
            f"samples that follow each other do so in the next epoch too: shuffle anew. {where}",
            measured=f"{len(pairs & others)} of {len(pairs)} pairs of neighbours stay",
        )
    odd = [_repeated_or_missing(deal, shares) for shares in epochs]
    if odd[0] and all(one == odd[0] for one in odd):
        what = "left out: they are never trained on" if deal.drop_last else "repeated: they weigh twice as much"
        how = "drop" if deal.drop_last else "pad"
        raise Wrong(f"in every epoch the same samples are {what}. Shuffle first, {how} then. {where}.")


def _owners(shares: Shares) -> list[frozenset[int]]:
    return [frozenset(share) for share in shares]


def _neighbours(shares: Shares) -> set[frozenset[int]]:
    return {frozenset(pair) for share in shares for pair in itertools.pairwise(share)}


def _repeated_or_missing(deal: Deal, shares: Shares) -> set[int]:
    counts = Counter(index for share in shares for index in share)
    return {index for index in range(deal.length) if counts[index] != 1}
