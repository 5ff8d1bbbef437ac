"""Exercise 2: ``checkpointed(function, *tensors)``, on a simulated GPU: what is held, computed again and drawn.

A chain of pieces is run twice: as it is, and with each piece checkpointed. Both begin with the same random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, compare

PRELOAD = ("checks.memory_and_precision.pieces", "torch.distributed.tensor")
PIECES = 4
ROUNDINGS = 200


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for gpu, dropout, tensors, gradients in (
        (0, 0.0, 1, "all"),
        (0, 0.3, 1, "all"),
        (1, 0.5, 2, "all but the last"),  # GPU 1 draws from a generator of its own, GPU 0 from the CPU's
        (rng.randrange(2), 0.2, 2, "the second only"),
        (rng.randrange(2), rng.choice((0.0, 0.4)), 3, "all"),
    ):
        case: Case = {"ranks": 1, "gpus": 2, "gpu": gpu, "dropout": dropout, "tensors": tensors}
        cases.append(case | {"gradients for": gradients, "rows": rng.randint(20, 60), "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    import simgpu
    from checks.core import gpus
    from checks.memory_and_precision import pieces

    simgpu.cluster(gpus_per_node=2)
    gpu = case["gpu"]
    torch.simgpu.set_device(gpu)
    facts["plain"] = _plain(case)
    chain, tensors = pieces.made(case, PIECES)
    counts = [0] * PIECES
    x, outputs = tensors[0], []
    torch.manual_seed(case["seed"])  # of the GPUs too
    start, there = gpus.held()[gpu], sum(gpus.rounded(one.grad.nbytes) for one in chain[0].parameters())
    facts["forward"] = []
    for number, piece in enumerate(chain):
        given = {f"tensor {i}": one for i, one in enumerate([x, *tensors[1:]])}
        function = pieces.counted(piece, counts, number)
        x = watch.call("checkpointed", function=function, **given)
        if not isinstance(x, torch.Tensor):
            facts["kind"] = type(x).__name__
            return
        outputs.append(x.nbytes)
        facts["forward"].append(gpus.held()[gpu] - start - sum(gpus.rounded(each) for each in outputs))
    facts["output"] = gpus.plain(x)
    facts["calls forward"] = list(counts)
    facts["random forward"] = _random()
    given.clear()
    if x.grad_fn is None:
        facts["kind"] = "a tensor without a graph"
        return
    gradient = x.detach() / x.numel()
    parameters = [one for piece in chain for one in piece.parameters()]
    given = {"tensors": tensors, "parameters": parameters, "gradient": gradient}
    with watch.step("backward", None, **given), gpus.seen() as facts["seen"]:
        x.backward(gradient)
    del x, gradient
    given.clear()
    facts["calls"] = list(counts)
    facts["random"] = _random()
    facts["gradients"] = pieces.gradients(chain, tensors)
    facts["room"] = sum(gpus.rounded(one.grad.nbytes) for one in [*parameters, *tensors] if one.grad is not None)
    facts["left"] = gpus.held()[gpu] - start + there - facts["room"]
    with torch.no_grad():
        given = {f"tensor {i}": one for i, one in enumerate(tensors)}
        before = list(counts)
        y = watch.call("checkpointed", function=pieces.counted(chain[0], counts, 0), **given)
    facts["without"] = {
        "calls": counts[0] - before[0],
        "graph": getattr(y, "grad_fn", None) is not None or bool(getattr(y, "requires_grad", False)),
    }


def _random() -> list[list[int]]:
    """Where the random numbers are: those of the GPU, and those of the CPU."""
    import torch

    return [torch.simgpu.get_rng_state().tolist(), torch.get_rng_state().tolist()]


def _plain(case: Case) -> Facts:
    """The same chain, as it is."""
    import torch

    from checks.core import gpus
    from checks.memory_and_precision import pieces

    chain, tensors = pieces.made(case, PIECES)
    torch.manual_seed(case["seed"])  # of the GPUs too
    x, kept, gpu = tensors[0], [], case["gpu"]
    for piece in chain:
        before = gpus.held()[gpu]
        x = piece(x, *tensors[1:])
        kept.append(gpus.held()[gpu] - before - gpus.rounded(x.nbytes))
    found: Facts = {"output": gpus.plain(x)["value"], "random": _random(), "kept": kept}
    x.backward(x.detach() / x.numel())
    found["gradients"] = pieces.gradients(chain, tensors)
    return found


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    facts = world[0]
    plain = facts["plain"]
    if "kind" in facts:
        words = "checkpointed returns what the function returns, a tensor that autograd can go back from"
        yield Broken("returns:kind", words, facts["kind"])
        return
    yield from compare("value:0", "the result", facts["output"]["value"], [plain["output"]], steps=ROUNDINGS)
    for number, more in enumerate(facts["forward"]):
        if more > 0:
            words = f"after {number + 1} pieces, something is held beside the pieces' results: the activations of a "
            words += "piece are not to be kept"
            figures = f"{more:,} bytes more", f"0 (everything kept: {sum(plain['kept'][: number + 1]):,})"
            yield Broken("memory:0 held", words, *figures)
            break
    if facts["calls forward"] != [1] * PIECES:
        words = "each function runs once in the forward pass"
        yield Broken("work:0 forward", words, facts["calls forward"], [1] * PIECES)
    if facts["random forward"] != plain["random"]:
        words = "after the forward pass the GPU's random numbers are not where the functions leave them"
        yield Broken("value:4 drawn", words)
    yield from _backward(facts, plain, case)
    if facts["without"]["calls"] != 1 or facts["without"]["graph"]:
        words = "under torch.no_grad() the function runs once, and there is no graph"
        yield Broken("work:3 no_grad", words, f"{facts['without']['calls']} runs")


def _backward(facts: Facts, plain: Facts, case: Case) -> Iterator[Broken]:
    yield from _gradients(facts["gradients"], plain["gradients"], "value:3" if case["dropout"] else "value:2")
    if facts["calls"] != [2] * PIECES:
        words = "each function runs once in the forward pass and once more in the backward pass"
        yield Broken("work:1 again", words, facts["calls"], [2] * PIECES)
    if facts["random"] != plain["random"]:
        words = (
            "after the backward pass the GPU's random numbers are not as before it: whoever draws next gets numbers "
        )
        yield Broken("value:5 drawn", words + "that were drawn already. Put the state back that you have found")
    most = facts["room"] + 2 * max(plain["kept"])
    if facts["seen"]["peak"][case["gpu"]] > most:
        words = "in the backward pass the activations of more than one piece are there at the same time"
        yield Broken("memory:1 peak", words, f"{facts['seen']['peak'][case['gpu']]:,} bytes", f"at most {most:,}")
    if facts["left"] > 0:
        words = "something stays in the GPU's memory after the backward pass, beside gradients"
        yield Broken("memory:2 left", words, f"{facts['left']:,} bytes", 0)


def _gradients(got: dict[str, Any], right: dict[str, Any], clause: str) -> Iterator[Broken]:
    from checks.memory_and_precision.pieces import BEFORE

    for name, one in right.items():
        if one is None and got.get(name) is not None:
            yield Broken("value:1 extra", f"{name} gets a gradient, though nobody asked for one")
        elif one is not None and got.get(name) is None:
            why = "is every tensor's gradient returned, in the order of the tensors?"
            if name.startswith("piece"):
                why = "the backward pass through the second run has to reach the parameters too"
            yield Broken("value:1 none", f"{name} gets no gradient: {why}")
    for name, one in right.items():
        if one is not None and got.get(name) is not None:
            others = [value for value in right.values() if value is not None]
            later = PIECES - int(name.split("'")[0].split()[1]) if name.startswith("piece") else PIECES
            before = BEFORE * name.startswith("piece 0")
            guesses = {"is too large: twice as large with each piece": before + 2**later * (one - before)}
            if before:
                guesses["is that of this pass alone: add it to the one that is there already"] = one - before
            yield from compare(
                clause, f"the gradient of {name}", got[name], [one], steps=ROUNDINGS, guesses=guesses, beside=others
            )


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    facts = played[1][1][0]
    return {
        "chains": len(played),
        "bytes kept by four pieces": f"0 instead of {sum(facts['plain']['kept']):,}",
        "runs of each piece": facts["calls"][0],
    }


RANDOM = ("around.torch's random numbers", "around.the GPUs' random numbers")
CONTRACT = Contract(
    name="memory_and_precision.checkpointed",
    rules={
        "checkpointed": Rules(changes=RANDOM),
        "backward": Rules(changes=(*RANDOM, "*.grad", "*.grad.*")),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:*", "{}"),
        ("around:*", "{}"),
        ("returns:*", "{}"),
        ("value:0*", "{}"),
        ("memory:0*", "{}"),
        ("work:0*", "{}"),
        ("value:1*", "{}"),
        ("work:1*", "{}"),
        ("value:2*", "{}"),
        ("value:3*", "{}. Does dropout draw the same numbers in the second run?"),
        ("value:4*", "{}"),
        ("value:5*", "{}"),
        ("memory:1*", "{}"),
        ("memory:2*", "{}"),
        ("work:3*", "{}"),
    ),
    refused=(
        "torch.utils.checkpoint.checkpoint",
        "torch.utils.checkpoint.checkpoint_sequential",
        "torch.utils.checkpoint.CheckpointFunction.forward",
        "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
        "torch.autograd.graph.save_on_cpu.__init__",
    ),
    figures=figures,
)
