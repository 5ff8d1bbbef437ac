"""Which parameters share a bucket, when a bucket is due, and what usual mistakes give instead.

The rule is that of torch's ``compute_bucket_assignment_by_size`` (torch/csrc/distributed/c10d/reducer.cpp): a bucket
closes as soon as it holds the cap or more. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ITEM = {"float32": 4, "float64": 8}


class Weight(NamedTuple):
    """A parameter: its first name, its bytes and type, how many names it has, whether it is trained."""

    name: str
    bytes: int
    dtype: str
    names: int = 1
    trainable: bool = True

    @property
    def elements(self) -> int:
        return self.bytes // _ITEM[self.dtype]


Bucket = list[Weight]


def buckets_of(
    weights: Sequence[Weight],
    cap: float,
    *,
    forward: bool = False,
    at_most: bool = False,
    beyond: bool = False,
    elements: bool = False,
    mixed: bool = False,
    by_closing: bool = False,
    frozen: bool = False,
    tied_twice: bool = False,
) -> list[Bucket]:
    """The buckets in their order. Each flag stands for a mistake.

    Args:
        weights: all parameters of the model, in the order of ``model.parameters()``.
        cap: bytes.
    """
    if tied_twice:
        weights = [weight for weight in weights for _ in range(weight.names)]
    chosen = [weight for weight in (weights if forward else reversed(weights)) if weight.trainable or frozen]
    opened: list[Bucket] = []
    closed: list[Bucket] = []
    current: dict[str, Bucket] = {}  # by type
    for weight in chosen:
        kind = "" if mixed else weight.dtype
        if at_most and kind in current and _size([*current[kind], weight], elements) > cap:
            closed.append(current.pop(kind))
        if kind not in current:
            current[kind] = []
            opened.append(current[kind])
        current[kind].append(weight)
        size = _size(current[kind], elements)
        if size > cap if beyond or at_most else size >= cap:
            closed.append(current.pop(kind))
    return closed + [bucket for bucket in opened if bucket in current.values()] if by_closing else opened


def _size(bucket: Bucket, elements: bool) -> int:
    return sum(weight.elements if elements else weight.bytes for weight in bucket)


MISTAKES: dict[str, dict[str, bool]] = {
    "the buckets are filled from the first parameter to the last: gradients come the other way round, take the "
    "parameters in reverse order": {"forward": True},
    "a bucket is closed before it would exceed the cap: close it when it holds the cap or more, as torch does": {
        "at_most": True
    },
    "a bucket that holds exactly the cap is full: close it when its bytes are >= the cap, not >": {"beyond": True},
    "the cap counts bytes, not elements": {"elements": True},
    "the buckets are in the order in which they were filled: keep them in the order in which they were opened": {
        "by_closing": True
    },
    "frozen parameters take part in the buckets": {"frozen": True},
    "the tied weight takes part twice": {"tied_twice": True},
    "gradients of different types share a bucket: each type has buckets of its own": {"mixed": True},
}
"""What a learner may have done, and how ``buckets_of`` does it too."""


def launches(buckets: Sequence[Bucket]) -> list[tuple[int, str]]:
    """Bytes and type of the all-reduce of each bucket. (torch.cat takes the widest type.)"""
    widest = [max((weight.dtype for weight in bucket), key=_ITEM.__getitem__) for bucket in buckets]
    return [(_size(bucket, True) * _ITEM[one], one) for bucket, one in zip(buckets, widest, strict=True)]


def due(buckets: Sequence[Bucket], ready: Sequence[str]) -> list[int]:
    """For each bucket, how many gradients are ready when it may go: its own are, and those of all before it.

    What is not in ``ready`` never gets a gradient, and nobody waits for it.
    """
    moments: list[int] = []
    for bucket in buckets:
        moments.append(max([*moments[-1:], *(_place(weight.name, ready) for weight in bucket)]))
    return moments


def _place(name: str, ready: Sequence[str]) -> int:
    return ready.index(name) + 1 if name in ready else 0


def telling_caps(weights: Sequence[Weight], candidates: Sequence[int]) -> list[int]:
    """Of some caps, a few with which each mistake gives other buckets than the rule, if there are such."""
    shown = {
        cap: {one for one, how in MISTAKES.items() if launches(buckets_of(weights, cap, **how)) != right}
        for cap in candidates
        for right in [launches(buckets_of(weights, cap))]
    }
    left, chosen = set(MISTAKES), []
    while shown and (best := max(shown, key=lambda cap: len(shown[cap] & left))) and shown[best] & left:
        chosen.append(best)
        left -= shown[best]
    return chosen or [1]


def why(weights: Sequence[Weight], cap: int, ready: Sequence[str], got: list[tuple[int, str]]) -> str:
    """The likely mistake of somebody who launched these all-reduces, which are not those of the rule."""
    right = launches(buckets_of(weights, cap))
    if got == right[: len(got)]:
        return (
            f"{len(right) - len(got)} of {len(right)} buckets are never launched: a bucket goes when all its gradients "
            "are ready, however full it is, the last one too"
        )
    if len(got) == len(ready) and len(right) < len(ready):
        return "there is one all_reduce for each parameter: put a bucket's gradients into one tensor, and launch that"
    for sentence, how in MISTAKES.items():
        if got == launches(buckets_of(weights, cap, **how)):
            return sentence
    arrived = sorted((w for w in weights if w.trainable), key=lambda weight: -ready.index(weight.name))
    if any(got == launches(buckets_of(arrived, cap, by_closing=how)) for how in (False, True)):
        return "the buckets are filled in the order in which gradients arrive, which another rank need not share"
    if sorted(got) == sorted(right):
        return "the buckets are right, but they are launched in another order: bucket 0 first, then bucket 1, …"
    return "these are not the buckets that the rule gives"
