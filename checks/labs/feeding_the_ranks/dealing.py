"""What both samplers are given, and what is asked of all that they give."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from checks.engine import refuse

Shares = list[list[int]]  # indices of each rank, rank 0 first
MOST = 1_000  # indices that are asked of a sampler
BESIDE = "two iterators of one sampler disturb each other: where it is belongs to each iterator, not to self"


class Numbered:
    """A data set that has a length, and whose samples a sampler has no business to read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:  # ``for … in`` and ``list`` come here too
        refuse(True, "the sampler reads samples of the data set: it needs the length alone, and gives indices")


def dealt(samplers: Iterable[Any], length: int) -> Shares:
    """What the samplers of all ranks give: plain ints that name samples."""
    shares = [list(itertools.islice(sampler, MOST)) for sampler in samplers]
    for index in itertools.chain(*shares):
        kind = type(index).__name__
        refuse(kind != "int", f"a sampler gives plain ints, and this one gives a {kind}: .tolist() makes ints of it")
        refuse(not 0 <= index < length, f"there is no sample {index}: indices go from 0 to {length - 1}")
    return shares


def often(shares: Shares, length: int) -> list[int]:
    """How often a sample comes: the rarest one, and the most frequent one."""
    counts = Counter(itertools.chain(*shares))
    return [min(counts[index] for index in range(length)), max(counts.values(), default=0)]


def begins_anew(sampler: Any, share: Sequence[int]) -> None:
    """Refuse a sampler whose iterators get in each other's way, or that goes on where somebody has stopped."""
    pairs = list(itertools.islice(zip(sampler, sampler, strict=False), MOST))
    refuse(pairs != [(one, one) for one in share], BESIDE)
