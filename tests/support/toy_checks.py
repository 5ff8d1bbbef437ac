"""Checks of a lab that exists in tests only, to try the machinery with: one process, several ranks, two functions."""

from __future__ import annotations

from typing import Any

from checks import Wrong, exercise, run
from utils.ranks.recorder import record_collectives

LAB = "toy"
SECONDS = 20  # for each launch; a test of what never ends takes less


@exercise(lab=LAB, title="Add two numbers", difficulty=1, minutes=5, timeout=60)
def add(add: Any) -> dict[str, int]:
    """Judge a function that adds two numbers."""
    cases = [(1, 2), (3, 4), (-1, 1)]
    for (a, b), result in zip(cases, run(_results, add, cases, timeout=SECONDS), strict=True):
        _expect("Did you add the numbers?", result, a + b)
    return {"cases": len(cases)}


def _results(function: Any, cases: Any) -> list[Any]:
    return [function(*case) for case in cases]


def _expect(sentence: str, measured: Any, expected: Any) -> None:
    if measured != expected:
        raise Wrong(sentence, measured=measured, expected=expected)


@exercise(lab=LAB, title="Mean over ranks", difficulty=2, minutes=10, timeout=60)
def mean_over_ranks(mean_over_ranks: Any) -> dict[str, int]:
    """Judge a function that replaces a tensor by its mean over all ranks, with one all-reduce."""
    results = run(_mean_probe, mean_over_ranks, ranks=2, timeout=SECONDS)
    for value, names in results:
        _expect("Is the sum divided by the world size?", value, 1.5)
        if names != ["all_reduce"]:
            raise Wrong("One all-reduce is enough", measured=", ".join(names) or "none", expected="all_reduce")
    return {"all-reduces": 1}


def _mean_probe(mean_over_ranks: Any) -> Any:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([dist.get_rank() + 1.0])
    with record_collectives() as record:
        result = mean_over_ranks(tensor)
    if result is None:
        raise Wrong("mean_over_ranks returned None: is the `return` missing?")
    return result.item(), record.names


@exercise(lab=LAB, title="There and back", difficulty=3, minutes=15)
def there_and_back(pack: Any, unpack: Any) -> str:
    """Judge two functions, the second of which undoes the first."""
    numbers = [3, 1, 2]
    packed = run(pack, numbers)
    _expect("Does unpack give what pack was given?", run(unpack, packed), numbers)
    return "three numbers went there and back"


def use_shape(answer: Any) -> Any:
    """A probe that takes for granted what it gets."""
    return answer().shape
