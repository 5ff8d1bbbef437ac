"""What the all-reduces of this lab share: a tensor inside a larger one, its sum, and what a call may hold and send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import leaves, memory, refuse, same, watched
from checks.engine.watching import messages, waits

LARGE, COUNTED = 100_000, 1_000  # elements from which Python's memory is counted, and tensors
SMALL, EDGE = 512, 3  # bytes that are nothing; elements around a tensor
_SIZES = [(120, "float64"), (29, "float64"), (120, "int64"), (2, "float32"), (LARGE + 13, "float64"),
          (1_000, "float64"), (29, "int32"), (0, "float32")]  # fmt: skip
CASES = [{"length": length, "type": kind, "seed": number} for number, (length, kind) in enumerate(_SIZES)]


def mistakes(first: str, ranks: str) -> dict[str, dict[str, str]]:
    """Those of any all-reduce, by its first statement, and by what it calls the number of ranks."""
    words = "the tensor is what it was before: work in place. `tensor = …` inside a function only renames"
    return {
        words: {first: f"    tensor = tensor.clone()\n{first}"},
        "it is the average: an all-reduce gives the sum": {first: f"    tensor.copy_(tensor / {ranks})\n{first}"},
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
    large = case["length"] >= LARGE
    with watched(allowed=("send", "recv")) as seen, leaves(), memory.held(base, python=large) as held:
        all_reduce(tensor)
    waits(seen.calls)
    around = torch.cat([base[:EDGE], base[-EDGE:]])
    refuse(not torch.all(around == 1), "writes beyond the ends of its tensor, where other numbers are")
    right: list[Any] = [None] * len(every)
    dist.all_gather_object(right, same(tensor, sum(every)))
    return tensor, messages(seen.calls), held if all(right) else None


def to_the_right(sent: list[tuple[int, int]]) -> None:
    """Refuse messages to another rank than the next one."""
    right = (dist.get_rank() + 1) % dist.get_world_size()
    wrong = [peer for peer, _ in sent if peer != right]
    fault = "a message goes to another rank than the next one in the ring: rank r sends to rank r + 1"
    refuse(wrong, fault, measured=wrong and wrong[0], expected=right)


def lean(case: dict[str, Any], held: dict[str, int], limit: int, words: str) -> None:
    """Refuse who has held more bytes than the limit beside a tensor. ``words``: the limit, for a sentence."""
    sentence = f"more is held beside the tensor than {words} (in bytes; in tensors, or in arrays, lists and bytes): "
    sentence += "add in place (chunk += received), copy nothing"
    most = max(held.values()) if case["length"] >= COUNTED else 0
    refuse(most > limit + SMALL, sentence, measured=most, expected=f"at most {limit}")


def _numbers(case: dict[str, Any], rank: int) -> torch.Tensor:
    """Of one rank. Integers are too large for the digits of a float of as many bytes."""
    dtype, generator = getattr(torch, case["type"]), torch.Generator().manual_seed(100 * case["seed"] + rank)
    if dtype.is_floating_point:
        return torch.randn(case["length"], generator=generator, dtype=dtype)
    most = 2 ** (8 * dtype.itemsize - 5)
    return torch.randint(most // 2, most, (case["length"],), generator=generator).to(dtype)
