"""What the all-reduces of this lab share: a tensor inside a larger one, its sum, and what a call may hold and send."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import leaves, memory, refuse, same, watched
from checks.engine.watching import messages, waits

LARGE, COUNTED = 100_000, 1_000  # elements from which Python's memory is counted, and tensors
SMALL, EDGE = 512, 3  # bytes that are nothing; elements around a tensor
NOTHING = {"tensors": 0, "python": 0}
_SIZES = [(120, "float64"), (29, "float64"), (120, "int64"), (2, "float32"), (LARGE + 13, "float64"),
          (1_000, "float64"), (29, "int32"), (0, "float32")]  # fmt: skip
CASES = [{"length": length, "type": kind, "seed": number} for number, (length, kind) in enumerate(_SIZES)]

RENAMED = "the tensor is what it was before: work in place. `tensor = …` inside a function only renames"
AVERAGE = "it is the average: an all-reduce gives the sum"
INTEGERS = "integers do not stay integers: a float has not enough digits for them"
ROUNDED = "numbers in float64 are added in float32"


def mistakes(first: str, last: str, ranks: str) -> dict[str, dict[str, str]]:
    """Those of any all-reduce, by its first statement and its last, and by what it calls the number of ranks."""
    floats = "    given, tensor = tensor, tensor if tensor.is_floating_point() else tensor.double()\n"
    return {
        RENAMED: {first: "    tensor = tensor.clone()\n" + first},
        AVERAGE: {last: last + f"\n    tensor.copy_(tensor / {ranks})"},
        INTEGERS: {first: floats + first, last: last + "\n    given.copy_(tensor)"},
    }


def summed(
    case: dict[str, Any], all_reduce: Callable[..., Any]
) -> tuple[torch.Tensor, list[tuple[int, int]], dict[str, int] | None]:
    """After a call: the tensor; what this rank has sent: to whom, and how many bytes; what it has held (see ``lean``).

    None in its place: not all ranks have the sum, and that is to be told first.
    """
    every = [_numbers(case, rank) for rank in range(dist.get_world_size())]
    base = torch.ones(case["length"] + 2 * EDGE, dtype=every[0].dtype)
    tensor = base[EDGE:-EDGE].copy_(every[dist.get_rank()])
    with (
        watched(allowed=("send", "recv")) as seen,
        leaves(),
        memory.held(base, python=case["length"] >= LARGE)
        if case["length"] >= COUNTED
        else nullcontext(NOTHING) as held,
    ):
        all_reduce(tensor)
    waits(seen.calls)
    around = torch.cat([base[:EDGE], base[-EDGE:]])
    refuse(not torch.all(around == 1), "writes beyond the ends of its tensor, where other numbers are")
    right: list[Any] = [None] * len(every)
    dist.all_gather_object(right, same(tensor, sum(every)))
    return tensor, messages(seen.calls), held if all(right) else None


def lean(held: dict[str, int], limit: int, words: str) -> None:
    """Refuse who has held more bytes than the limit beside the tensor. ``words``: the limit, for a sentence."""
    sentence = f"more is held beside the tensor than {words} (in bytes): add in place (chunk += received), copy nothing"
    refuse(held["tensors"] > limit + SMALL, sentence, measured=held["tensors"], expected=f"at most {limit}")
    sentence = f"more is held in arrays, lists or bytes than {words} (in bytes): numpy's arrays count as well"
    refuse(held["python"] > limit + SMALL, sentence, measured=held["python"], expected=f"at most {limit}")


def _numbers(case: dict[str, Any], rank: int) -> torch.Tensor:
    """Of one rank. Integers are too large for the digits of a float of as many bytes."""
    dtype, generator = getattr(torch, case["type"]), torch.Generator().manual_seed(100 * case["seed"] + rank)
    if dtype.is_floating_point:
        return torch.randn(case["length"], generator=generator, dtype=dtype)
    most = 2 ** (8 * dtype.itemsize - 5)
    return torch.randint(most // 2, most, (case["length"],), generator=generator).to(dtype)


def item(case: dict[str, Any]) -> int:
    """Bytes of an element."""
    return getattr(torch, case["type"]).itemsize
