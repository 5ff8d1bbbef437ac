"""Check of ``sequence_norm``: RMSNorm of this rank's tokens, then all tokens for everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.labs.tensor_parallelism import passes

NORM, TURN = "rms_norm(x, weight.shape, shared, eps)", "x = x.transpose(0, 1).contiguous()"
TURN_BACK, SCATTER = "gradient = gradient.transpose(0, 1).contiguous()", "dist.reduce_scatter_single(part, gradient)"
OWN = "part = gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()"
OFFICIAL = Reference("tensor_parallelism", "sequence_norm", {
    "the gradient of weight is that of this rank's tokens: all ranks have the same weight, so it is the sum of theirs":
        {"shared = CopyToRanks.apply(weight)": "shared = weight"},
    "the gradient of weight is the mean over the ranks: each token counts once, so it is the sum": passes.MEAN_F,
    "the gradient of x is cut out of this rank's own: other ranks have used these tokens too, so it is the sum":
        {SCATTER: OWN},
    "the gradients of the result are averaged over the ranks: the true one is their sum":
        {SCATTER: "dist.reduce_scatter_single(part, gradient, dist.ReduceOp.AVG)"},
    "an all-reduce brings each rank the gradients of all tokens: a reduce-scatter brings it those of its own":
        {SCATTER: f"dist.all_reduce(gradient)\n        {OWN}"},
    "the gradient of x is summed once more: the reduce-scatter has summed it already":
        {NORM: NORM.replace("(x", "(CopyToRanks.apply(x)")},
    "the sequences of the batch are mixed up: pieces come along dimension 0, so bring the sequence there first":
        {TURN: "x = x.contiguous()", "return whole.transpose(0, 1)": "return whole.view(x.shape[0], -1, x.shape[2])"},
    "the gradients of the batch's sequences are mixed up: bring the sequence to dimension 0 before the reduce-scatter":
        {TURN_BACK: "gradient = gradient.contiguous().view(gradient.shape[1], gradient.shape[0], gradient.shape[2])"},
    "eps is left out": {", shared, eps)": ", shared)"},
    "it is a LayerNorm: RMSNorm takes no mean away": {NORM: "layer_norm(x, weight.shape, shared, None, eps)"},
    "the weight is left out": {NORM: NORM.replace("shared", "None") + " + 0 * shared"},
    "tensors in float64 are computed in float32":
        {NORM: "rms_norm(x.float(), weight.shape, shared.float(), eps).to(x.dtype)"},
})  # fmt: skip
CASES = [
    {"batch": 2, "tokens_of_each_rank": 3, "width": 24, "eps": 0.3, "type": "float64", "seed": 1},
    {"batch": 1, "tokens_of_each_rank": 4, "width": 33, "eps": 0.05, "type": "float32", "seed": 2},
    {"batch": 3, "tokens_of_each_rank": 1, "width": 16, "eps": 0.1, "type": "float64", "seed": 3},
]
MOST = 4  # times the memory of its own tokens that a rank may keep for the backward pass


@exercise(OFFICIAL, CASES, title="A norm on its own part of the sequence", difficulty=3, minutes=30, ranks=(4, 2))
def sequence_norm(case: dict[str, Any], sequence_norm: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``sequence_norm(x, weight, eps)``, forward and backward."""
    dtype, width = getattr(torch, case["type"]), case["width"]
    torch.manual_seed(case["seed"])
    weight = torch.nn.Parameter(torch.randn(width, dtype=dtype))
    torch.manual_seed(1000 * case["seed"] + dist.get_rank())
    shapes = {"x": (case["batch"], case["tokens_of_each_rank"]), "another x": (2, 3)}
    x = {name: torch.randn(*shape, width, dtype=dtype).requires_grad_() for name, shape in shapes.items()}
    most = 0.0  # that is kept, in times the memory of x

    def norm(x: torch.Tensor) -> Any:
        nonlocal most
        saved = {}
        with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.setdefault(id(one), one), lambda one: one):
            y = sequence_norm(x, weight, case["eps"])
        passes.tensor(y, (len(x), dist.get_world_size() * x.shape[1], width))
        storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in saved.values()}
        given = {one.untyped_storage()._cdata for one in (x, weight, y)}
        most = max(most, sum(nbytes for place, nbytes in storages.items() if place not in given) / x.nbytes)
        return y

    seen = passes.train(norm, x, {"weight": weight})
    words = f"for the backward pass autograd keeps more than {MOST} times the memory of x: norm first, then gather"
    refuse(most > MOST, words, measured=f"{most:.1f} times")
    return seen
