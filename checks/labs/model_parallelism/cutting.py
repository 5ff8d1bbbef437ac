"""Check of ``balanced_stages``: the largest stage is as small as it can be, and each stage is on its GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

import simgpu
from checks.engine import Reference, exercise, gpus, judge, leaves, refuse
from checks.engine.plain import from_array, kind_of, number, shorten
from checks.points import passed

BEST = "    best = []\n"
COST = "sum(parameter.nbytes for parameter in piece.parameters())"
OFFICIAL = Reference("model_parallelism", "balance make_stages", {
    "a piece's cost is how many numbers it has, not how many bytes": {".nbytes": ".numel()"},
    "buffers are counted, as state_dict() has them too: a piece's cost is the bytes of its parameters":
        {COST: "sum(tensor.nbytes for tensor in piece.state_dict().values())"},
    "frozen parameters are not counted: a piece's cost is the bytes of all its parameters":
        {"in piece.parameters()": "in piece.parameters() if parameter.requires_grad"},
    "every stage gets as many pieces, whatever they cost: the largest stage sets the pace":
        {BEST: f"    return [len(costs) // p + (i < len(costs) % p) for i in range(p)]\n{BEST}"},
})  # fmt: skip
COSTS = [{"costs": costs, "p": p} for costs, p in (
    ([5, 1, 1, 1], 2), ([1, 1, 9], 2), ([7, 2, 2, 2, 2, 7], 3), ([4, 5, 5, 5, 9, 6], 3), ([5, 8, 3, 3, 2, 3, 4, 8], 4),
    ([0, 0, 4, 0], 2), ([10, 40, 20, 30], 4), ([3, 1, 4], 1), ([2, 6, 4, 4, 1, 8, 3, 3, 5, 2, 7, 4], 4),
    ([1, 1, 2**24], 2), ([1, 1, 2**53], 2), ([9, 2, 7, 1, 1, 8, 3, 6, 4, 4, 2, 9, 5, 3], 8))]  # fmt: skip
MODELS: list[dict[str, Any]] = [  # which pieces are in float64, or frozen; how many numbers of buffers they have
    {"p": 2, "numbers": [500, 100, 100]},
    {"p": 2, "numbers": [200, 200, 300], "float64": [0]},
    {"p": 2, "numbers": [200, 200, 300], "buffers": {0: 600}},
    {"p": 2, "numbers": [400, 200, 300], "frozen": [0]},
    {"p": 4, "numbers": [300, 0, 200, 200, 100, 700], "float64": [2], "buffers": {4: 900}, "frozen": [3]},
    {"p": 1, "numbers": [100, 200]},
]


class Piece(nn.Module):
    def __init__(self, numbers: int, wide: bool, buffer: int, frozen: bool) -> None:
        super().__init__()
        dtype = torch.float64 if wide else torch.float32
        self.weight = nn.Parameter(torch.randn(numbers, dtype=dtype), requires_grad=not frozen)
        self.register_buffer("buffer", torch.ones(buffer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.weight.double().sum())


def play(case: dict[str, Any], balance: Callable[..., Any], make_stages: Callable[..., Any]) -> dict[str, Any]:
    return _cut(case["costs"], case["p"], balance) if "costs" in case else _placed(case, make_stages)


def _cut(costs: list[int], p: int, balance: Callable[..., Any]) -> dict[str, Any]:
    with leaves(costs=costs):
        result = from_array(balance(costs, p))
    counts = [number(from_array(one), whole=True) for one in result] if isinstance(result, list | tuple) else [None]
    fine = None not in counts and len(counts) == p and min(counts) >= 1 and sum(counts) == len(costs)
    fault = "balance does not return a whole number for each stage, at least 1, which add up to all pieces"
    refuse(not fine, fault, measured=shorten(result), expected=f"{p} numbers, {len(costs)} in all")
    largest = max(sum(costs[begin:end]) for begin, end in pairwise([0, *accumulate(counts)]))
    return {"the cost of the largest stage": f"{largest:,}"}  # (a text, so that large ones are compared exactly)


def _placed(case: dict[str, Any], make_stages: Callable[..., Any]) -> dict[str, Any]:
    simgpu.cluster(gpus_per_node=case["p"], gpu="toy")
    torch.manual_seed(1)
    wide, frozen, buffers = case.get("float64", ()), case.get("frozen", ()), case.get("buffers", {})
    pieces = [Piece(size, i in wide, buffers.get(i, 0), i in frozen) for i, size in enumerate(case["numbers"])]
    x = torch.randn(5, dtype=torch.float64)
    expected, given = nn.Sequential(*pieces)(x), list(pieces)
    with gpus.seen() as seen:
        made = make_stages(given, case["p"])
    fine = isinstance(made, list | tuple | nn.ModuleList) and all(isinstance(stage, nn.Module) for stage in made)
    fault = "make_stages does not return a list of stages, each an nn.Module, one for each GPU"
    refuse(not fine or len(made) != case["p"], fault, measured=kind_of(made))
    inside = [pieces.index(one) for stage in made for one in stage.modules() if one in pieces]
    fault = "the stages do not have the pieces themselves, each once and in order (a copy? a plain list in a module?)"
    refuse(inside != [*range(len(pieces))], fault, measured=inside)
    refuse(given != pieces, "make_stages changes the list that it is given: work on a copy of it")
    result, tensors = x, [[*stage.parameters(), *stage.buffers()] for stage in made]
    for i, own in enumerate(tensors):
        places = sorted({gpus.place(one) for one in own} - {f"GPU {i}"})
        refuse(places, f"stage {i} is not on its GPU", measured=places, expected=f"GPU {i}")
    for i, stage in enumerate(made):
        room = sum(gpus.rounded(one.nbytes) for one in tensors[i])
        fault = f"GPU {i} held more than its own stage for a while: move each stage straight from the CPU to its GPU"
        refuse(seen["peak"][i] > room, fault, measured=f"{seen['peak'][i]:,} bytes", expected=f"{room:,} bytes")
        result = stage(result.to(f"simgpu:{i}"))
    fault = "run one after the other, the stages give another result than the model"
    refuse(not torch.allclose(result.cpu(), expected), fault)
    return {"bytes of the largest stage": f"{max(sum(one.nbytes for one in stage.parameters()) for stage in made):,}"}


@exercise(title="Balanced stages", difficulty=1, minutes=15, parts={"balance": 1, "make_stages": 1}, official=OFFICIAL)
def balanced_stages(balance: Any, make_stages: Any) -> dict[str, Any]:
    """Judge ``balance(costs, p)``, pieces for each stage, and ``make_stages(pieces, p)``, which uses it."""
    judge(OFFICIAL, play, COSTS, balance, make_stages)
    passed("balance")
    return judge(OFFICIAL, play, MODELS, balance, make_stages)
