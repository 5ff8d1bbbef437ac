"""What both samplers have to do: whose turn it is on which rank, and what their data set allows."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Facts
from checks.verdicts import Wrong

Shares = list[list[int]]  # indices of each rank, rank 0 first
REFUSED = tuple(f"torch.utils.data.distributed.DistributedSampler.{name}" for name in ("__init__", "__iter__"))


class Numbered:
    """A data set that has a length, and whose samples a sampler has no business to read."""

    __slots__ = ("__dict__", "_length")

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:  # ``for … in`` and ``list`` come here too
        raise Wrong("the sampler reads samples of the data set: it needs the length alone, and gives indices.")


@contextlib.contextmanager
def hashes_of_its_own(rank: int) -> Iterator[None]:
    """In the ``with`` block texts have other hashes on every rank, as in processes that are not forked from one."""
    usual = builtins.hash

    def has_text(value: Any) -> bool:
        return isinstance(value, str | bytes) or (isinstance(value, tuple | frozenset) and any(map(has_text, value)))

    builtins.hash = lambda value: usual(value) ^ (rank if has_text(value) else 0)
    try:
        yield
    finally:
        builtins.hash = usual


def cases(rng: random.Random, sizes: Sequence[int], ranks: int = 1) -> list[Case]:
    """Data sets shorter and longer than the world, divided evenly or not, some long enough to tell orders apart."""
    found = []
    for size in sizes:
        odd = size * rng.randint(24 // size + 1, 125 // size) + rng.randint(1, max(size - 1, 1))
        lengths = [
            101 if size == 4 else odd + 300 if size == 2 else odd,  # (more than a byte counts)
            size * rng.randint(24 // size + 1, 125 // size),
            1,
            rng.randint(1, size),
            4 * size + 1,
        ]
        found += [{"ranks": ranks, "world size": size, "samples": length} for length in lengths]
    return found


def dealt(samplers: Sequence[Any]) -> list[list[Any]]:
    """What learners' samplers give, and not more of it than can be right."""
    return [list(itertools.islice(sampler, 1_000)) for sampler in samplers]


def beside(sampler: Any) -> list[list[Any]]:
    """What two iterators of one sampler give that are read in turn."""
    pairs = list(itertools.islice(zip(sampler, sampler, strict=False), 1_000))
    return [list(one) for one in zip(*pairs, strict=True)] or [[], []]


BESIDE = "two iterators of one sampler disturb each other: where it is belongs to each iterator, not to self"


def kinds(dealt: Sequence[list[list[Any]]]) -> list[str]:
    """Types of indices that are no plain ints."""
    return sorted({type(index).__name__ for shares in dealt for share in shares for index in share} - {"int"})


def judge_indices(case: Case, dealt: Sequence[Shares], kinds: Sequence[str]) -> Broken | None:
    """Plain ints that name samples."""
    length = case["samples"]
    if kinds:
        words = f"a sampler gives plain ints, and this one gives a {kinds[0]}: .tolist() makes ints of a tensor"
        return Broken("value:kind", words)
    strange = [index for shares in dealt for share in shares for index in share if not 0 <= index < length]
    if strange:
        return Broken("value:index", f"there is no sample {strange[0]}: indices go from 0 to {length - 1}")
    return None


def counted(shares: Shares) -> Counter[int]:
    return Counter(index for share in shares for index in share)


def worlds(played: Sequence[tuple[Case, Sequence[Facts]]]) -> str:
    return ", ".join(str(ranks) for ranks in sorted({case["world size"] for case, _ in played}))
