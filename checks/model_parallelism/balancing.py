"""Exercise 1, its second part: ``make_stages(pieces, p)``: the largest stage is as small as it can be."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.model_parallelism.costs import smallest_largest, stage_costs

PRELOAD = ("checks.model_parallelism.stages", "torch.distributed.tensor")


def draw_pieces(rng: random.Random) -> list[Case]:
    cases = []
    for p, types in (
        (3, "float32"),
        (4, "float64"),
        (2, "float64 and float32"),
        (1, "float32"),
        (rng.randint(2, 5), "float32"),
    ):
        case = {"ranks": 1, "gpus": p + rng.randint(0, 1), "stages": p, "pieces": p + rng.randint(2, 6)}
        cases.append(case | {"type": types, "seed": rng.getrandbits(30)})
    return cases


def scene_pieces(case: Case, watch: Any, facts: Facts) -> None:
    """Two models become stages, one after the other."""
    import simgpu

    simgpu.cluster(gpus_per_node=case["gpus"], gpu="toy")
    facts["models"] = [_one_model(case, watch, case["seed"] + number) for number in range(2)]


def _one_model(case: Case, watch: Any, seed: int) -> Facts:
    from torch import nn

    from checks.contracts import gpus
    from checks.model_parallelism import stages

    pieces, x = stages.pieces(seed, case["pieces"], case["type"])
    wanted, back = _there_and_back(nn.Sequential(*pieces), pieces, x)
    found: Facts = {"costs": [_bytes(piece.parameters()) for piece in pieces], "wanted": wanted}
    found["other costs"] = _other_costs(pieces)
    owned = [{id(tensor) for tensor in (*piece.parameters(), *piece.buffers())} for piece in pieces]
    numbers = {id(piece): number for number, piece in enumerate(pieces)}
    given = list(pieces)
    with gpus.seen() as found["seen"]:
        made = watch.call("make_stages", pieces=given, p=case["stages"])
    found["kind"] = type(made).__name__
    if not isinstance(made, list | tuple | nn.ModuleList) or not all(isinstance(stage, nn.Module) for stage in made):
        return found
    found["stages"] = []
    for stage in made:
        tensors = [*stage.parameters(), *stage.buffers()]
        order = [numbers[id(module)] for module in stage.modules() if id(module) in numbers]
        mine = set().union(*(owned[number] for number in order))
        extra = [p for p in stage.parameters() if id(p) not in mine]
        about = {"order": order, "places": sorted({gpus.place(one) for one in tensors}), "more": len(extra)}
        about |= {"cost": _bytes(stage.parameters()), "moved": _bytes(tensors)}
        found["stages"].append(about | {"fits": sum(gpus.rounded(one.nbytes) for one in tensors)})
    placed = all(one["places"] in ([], [f"GPU {i}"]) for i, one in enumerate(found["stages"]))
    if (
        len(made) == case["stages"]
        and placed
        and [number for one in found["stages"] for number in one["order"]] == list(range(len(pieces)))
    ):
        before = gpus.held()
        found["outputs"], found["learns"] = [], True
        for _ in range(2):
            with watch.step("a stage"):
                output, own = _there_and_back(_in_a_row(made), pieces, x)
            found["outputs"].append(output)
            found["learns"] &= len(own) == len(back) and all(map(_alike, own, back))
        own.clear()
        found["kept"] = [now - then for now, then in zip(gpus.held(), before, strict=True)]
    return found


def _other_costs(pieces: Any) -> list[tuple[str, list[int]]]:
    """What pieces cost for who counts something else, by the words for it."""
    counted = {
        "numbers in place of bytes": lambda piece: sum(p.numel() for p in piece.parameters()),
        "buffers too": lambda piece: _bytes((*piece.parameters(), *piece.buffers())),
        "all that state_dict() has": lambda piece: _bytes(piece.state_dict().values()),
        "only what is trained": lambda piece: _bytes(p for p in piece.parameters() if p.requires_grad),
    }
    return [(why, [cost(piece) for piece in pieces]) for why, cost in counted.items()]


def _there_and_back(model: Any, pieces: Any, x: Any) -> tuple[Any, list[Any]]:
    """The output, and the gradients of the input and of what is trained; none where the graph is cut."""
    import torch

    from checks.contracts.snapshot import raw

    x = x.detach().clone().requires_grad_()
    y = model(x)
    if not isinstance(y, torch.Tensor) or not y.requires_grad:
        return (raw(y).detach().clone() if isinstance(y, torch.Tensor) else y), []
    trained = [parameter for piece in pieces for parameter in piece.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(y, [x, *trained], torch.ones_like(y), allow_unused=True)
    return raw(y).detach().clone(), [None if one is None else raw(one).detach().clone() for one in found]


def _in_a_row(made: Any) -> Any:
    def run(x: Any) -> Any:
        for i, stage in enumerate(made):
            x = stage(x.to(f"simgpu:{i}"))
        return x

    return run


def _alike(one: Any, other: Any) -> bool:
    import torch

    if one is None or other is None:
        return one is other
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def judge_pieces(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number, model in enumerate(world[0]["models"]):
        for one in _stages(case, model):
            yield one.at(call=number)


def _stages(case: Case, model: Facts) -> Iterator[Broken]:
    import torch

    p = case["stages"]
    if "stages" not in model:
        yield Broken("returns:kind", "make_stages returns a list of stages, each an nn.Module", model["kind"])
        return
    made = model["stages"]
    if len(made) != p:
        yield Broken("returns:number", "one stage for each GPU", f"{len(made)} stages", f"{p} stages")
        return
    for i, stage in enumerate(made):
        if stage["places"] not in ([], [f"GPU {i}"]):
            yield Broken("value:0 place", f"stage {i} is not on its GPU", ", ".join(stage["places"]), f"GPU {i}")
    order = [number for stage in made for number in stage["order"]]
    if missing := sorted(set(range(case["pieces"])) - set(order)):
        words = (
            f"piece {missing[0]} itself is in no stage's modules(): it is missing, or the stage holds a copy of it, "
        )
        words += "or keeps it in a plain list, into which nn.Module does not look (nn.ModuleList is one that it knows)"
        yield Broken("value:1 copy", words)
    elif order != sorted(order) or len(order) != case["pieces"]:
        yield Broken("value:2 order", "the pieces stay in their order, each in one stage", order, sorted(set(order)))
    elif any(stage["more"] for stage in made):
        yield Broken("value:2 more", "a stage has parameters that no piece has", [stage["more"] for stage in made])
    elif any(not stage["order"] for stage in made):
        yield Broken("value:2 empty", "every stage has at least one piece", [len(stage["order"]) for stage in made])
    peaks = model["seen"]["peak"]
    for i, peak in enumerate(peaks):
        fits = made[i]["fits"] if i < p else 0
        if peak > fits:
            words = (
                f"more than its own stage was on GPU {i} for a while; a model that needs {p} GPUs does not fit there"
            )
            words += ": move each stage straight from the CPU to its GPU"
            yield Broken("value:3 peak", words, f"{peak:,} bytes", f"{fits:,} bytes")
    right = {f"host → GPU {i}": stage["moved"] for i, stage in enumerate(made) if stage["moved"]}
    if model["seen"]["copies"] != right:
        words = "other bytes move than those of each stage, once, from the CPU to its GPU"
        yield Broken("value:4 copies", words, str(model["seen"]["copies"]), str(right))
    largest, best = max(stage["cost"] for stage in made), smallest_largest(model["costs"], p)
    if largest > best:
        counts = [len(stage["order"]) for stage in made]
        fits = [why for why, costs in model["other costs"]
                if max(stage_costs(costs, counts)) == smallest_largest(costs, p)]  # fmt: skip
        words = "the largest stage can be smaller"
        if fits:
            words += f"; this cut is best where one counts {' or '.join(fits)}: count the bytes of all parameters"
        yield Broken("value:5 largest", words, f"{largest:,} bytes", f"{best:,} bytes")
    if not all(torch.equal(one, model["wanted"]) for one in model.get("outputs", ())):
        words = "run one after the other, the stages give another result than the model: keep the order"
        yield Broken("value:6 result", words)
    elif not model.get("learns", True):
        words = "in backward the stages do not give the pieces and the input the gradients that the model gives them: "
        yield Broken("value:6 learns", words + "is the graph cut inside a stage (detach, no_grad)?")
    elif any(kept := model.get("kept", [])):
        words = "after a forward and a backward something stays in the GPUs' memory: does a stage keep input or output?"
        yield Broken("value:6 keeps", words, f"{sum(kept):,} bytes", 0)


def figures_pieces(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    first = [stage["cost"] for stage in played[0][1][0]["models"][0]["stages"]]
    return {
        "models": 2 * len(played),
        f"stages of the first, on {len(first)} GPUs": ", ".join(f"{b:,} bytes" for b in first),
    }


CONTRACT = Contract(
    name="model_parallelism.balanced_stages",
    # Parameters become tensors of a GPU in place; a buffer is replaced by its copy there, as Module.to does it.
    rules={"make_stages": Rules(changes=("*.device", "*.memory", "*.buffer*.is")), "a stage": Rules()},
    draw=draw_pieces,
    scene=scene_pieces,
    judge=judge_pieces,
    mistakes=(
        ("value:1 *", "{}"),
        ("state:*", "{}"),
        ("around:*", "{}"),
        ("returns:*", "{}"),
        *((f"value:{number} *", "{}") for number in range(7)),
    ),
    figures=figures_pieces,
)
