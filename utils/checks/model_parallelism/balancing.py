"""Pieces of a model shared out over stages: the best cut, stages on simulated GPUs, and the verdict."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.verdicts import Wrong


def pieces_of(name: str) -> list[Any]:
    """A small model on the CPU, as a list of pieces that run one after the other, and its input as the last entry."""
    import torch
    from torch import nn

    from utils.training.models import GPT, GPTConfig

    torch.manual_seed(0)
    if name == "a small GPT":
        config = GPTConfig(layers=6, heads=2, width=32, vocabulary=500, context=16, tied=False)
        return [*GPT(config).pieces(), torch.randint(500, (2, 16))]
    if name == "a funnel":
        widths = (96, 96, 64, 64, 32, 32, 32, 16, 16)
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        return [*(part for layer in layers for part in (layer, nn.Tanh())), torch.randn(3, 96)]
    assert name == "two kinds of numbers"
    precise = [nn.Linear(48, 48).double() for _ in range(3)]
    return [*precise, _ToFloat32(), *(nn.Linear(48, 48) for _ in range(6)), torch.randn(3, 48).double()]


def _ToFloat32() -> Any:
    from torch import nn

    class ToFloat32(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.float()

    return ToFloat32()


def bytes_of(module: Any) -> int:
    """Bytes of a module's parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def stages_of_models(
    make_stages: Any, models: Sequence[tuple[str, int]], best: Callable[[Sequence[int], int], int]
) -> list[int]:
    """Make stages of small models and look where the parameters are, how they got there, and whether it all works.

    Args:
        make_stages: the answer.
        models: name of each model, and the number of GPUs for it.
        best: from the bytes of each piece and ``p`` to the smallest possible bytes of the largest stage.

    Returns:
        Bytes of the largest stage of each model.
    """
    return [_stages_of_one_model(make_stages, name, p, best) for name, p in models]


def _stages_of_one_model(make_stages: Any, name: str, p: int, best: Callable[[Sequence[int], int], int]) -> int:
    import torch
    from torch import nn

    from utils import simgpu
    from utils.simgpu.memory import rounded

    *pieces, x = pieces_of(name)
    costs = [bytes_of(piece) for piece in pieces]
    wanted = nn.Sequential(*copy.deepcopy(pieces))(x)
    simgpu.cluster(gpus_per_node=p, gpu="toy")
    with simgpu.profile() as prof:
        made = make_stages(list(pieces), p)
    where = f"{name} on {p} GPUs"
    if not isinstance(made, list | tuple | nn.ModuleList) or not all(isinstance(stage, nn.Module) for stage in made):
        raise Wrong(f"{where}: make_stages returns a list of stages, each an nn.Module", measured=made)
    if len(made) != p:
        raise Wrong(f"{where}: one stage for each GPU", measured=f"{len(made)} stages", expected=f"{p} stages")
    judge_places(where, made)
    numbers = {id(piece): number for number, piece in enumerate(pieces)}
    order = [numbers[id(module)] for stage in made for module in stage.modules() if id(module) in numbers]
    for number in range(len(pieces)):
        if number not in order:
            raise Wrong(
                f"{where}: piece {number} itself is in no stage: it is missing, or the stage holds a copy of it, "
                "and then an optimizer that knows the model trains other parameters than the stages use."
            )
    if order != sorted(order):
        raise Wrong(f"{where}: the pieces must stay in their order", measured=order, expected=sorted(order))
    for i in range(p):
        fits = sum(rounded(tensor.nbytes) for tensor in itertools.chain(made[i].parameters(), made[i].buffers()))
        if prof.peak_memory(i) > fits:
            raise Wrong(
                f"{where}: more than its own stage was on GPU {i} for a while; a model that needs {p} GPUs does not "
                "fit there: move each stage straight from the CPU to its GPU",
                measured=f"{prof.peak_memory(i):,} bytes",
                expected=f"{fits:,} bytes",
            )
    largest = max(bytes_of(stage) for stage in made)
    if largest > best(costs, p):
        kinds = len({parameter.dtype for piece in pieces for parameter in piece.parameters()}) > 1
        raise Wrong(
            f"{where}: the largest stage can be smaller"
            + ("; the pieces have numbers of 8 and of 4 bytes: count bytes, not numbers" if kinds else ""),
            measured=f"{largest:,} bytes",
            expected=f"{best(costs, p):,} bytes",
        )
    for i, stage in enumerate(made):
        x = stage(x.to(f"simgpu:{i}"))
    if not torch.equal(x.cpu(), wanted):
        raise Wrong(f"{where}: run one after the other, the stages give another result than the model: keep the order.")
    return largest


def judge_places(where: str, made: Sequence[Any]) -> None:
    for i, stage in enumerate(made):
        places = {str(tensor.device) for tensor in itertools.chain(stage.parameters(), stage.buffers())}
        if places - {f"simgpu:{i}"}:
            raise Wrong(
                f"{where}: stage {i} is not on its GPU",
                measured=", ".join(sorted(places)),
                expected=f"simgpu:{i}",
            )


COSTS: tuple[tuple[tuple[int, ...], int], ...] = (  # costs of the pieces, stages
    ((5, 5, 5, 5), 2),
    ((7, 2, 2, 2, 2, 2, 2, 7), 3),
    ((1, 1, 1, 1, 1, 1, 1, 20), 2),
    ((4, 5, 5, 5, 9, 6), 3),
    ((5, 8, 3, 3, 2, 3, 4, 8), 4),
    ((4, 0, 0, 4, 0, 4, 0), 3),
    ((10, 40, 20, 30, 50), 5),
    ((3, 1, 4, 1, 5, 9, 2, 6), 1),
    ((2, 6, 4, 4, 1, 8, 3, 3, 5, 2, 7, 4), 4),
)
MODELS = (("a small GPT", 3), ("a funnel", 4), ("two kinds of numbers", 2), ("a funnel", 1))


def about_equal(all_counts: Sequence[Any]) -> bool:
    """Does every stage get the same number of pieces, as nearly as possible, whatever they cost?"""
    try:
        return all(max(counts) - min(counts) <= 1 for counts in all_counts)
    except (TypeError, ValueError):
        return False


def judge_counts(costs: Sequence[int], p: int, counts: Any, equal: bool) -> None:
    call = f"balance({list(costs)}, {p})"
    if not isinstance(counts, list | tuple) or not all(type(count) is int for count in counts):
        raise Wrong(f"{call} is a list with the number of pieces of each stage", measured=counts)
    if len(counts) != p:
        raise Wrong(f"{call} has one number for each stage", measured=counts, expected=f"{p} numbers")
    if sum(counts) != len(costs):
        raise Wrong(
            f"{call} loses pieces, or takes some twice: the numbers add up to the number of pieces",
            measured=f"{counts}, the sum is {sum(counts)}",
            expected=len(costs),
        )
    if min(counts) < 1:
        raise Wrong(f"{call} leaves a GPU without work: every stage has at least one piece", measured=counts)
    sums = stage_costs(costs, counts)
    if max(sums) > smallest_largest(costs, p):
        why = "equal numbers of pieces are not equal costs" if equal else "another cut is better"
        raise Wrong(
            f"{call} gives {counts}, stages that cost {sums}: {why}; the largest stage sets the pace",
            measured=f"largest {max(sums)}",
            expected=f"largest {smallest_largest(costs, p)}",
        )


def stage_costs(costs: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The cost of each stage."""
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def smallest_largest(costs: Sequence[int], p: int) -> int:
    """The smallest possible cost of the largest of ``p`` stages, none of them empty."""
    best: list[float] = [sum(costs[:end]) for end in range(len(costs) + 1)]  # of the first pieces, in one stage
    best[0] = float("inf")
    for _ in range(p - 1):
        best = [
            min((max(best[cut], sum(costs[cut:end])) for cut in range(end)), default=float("inf"))
            for end in range(len(costs) + 1)
        ]
    return int(best[-1])
