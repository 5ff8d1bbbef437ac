"""Checks of a sequence that is cut between layers: in a norm written by hand, and in a whole Llama by a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import Embedding, Linear

from checks.engine import Reference, exercise, refuse, watched
from checks.labs.tensor_parallelism import passes
from utils.training import models

NORM, TURN = "rms_norm(x, weight.shape, shared, eps)", "x = x.transpose(0, 1).contiguous()"
TURN_BACK, SCATTER = "gradient = gradient.transpose(0, 1).contiguous()", "dist.reduce_scatter_single(part, gradient)"
OWN = "part = gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()"
SEQUENCE_NORM = Reference("tensor_parallelism", "sequence_norm", {
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
})  # fmt: skip
TOKENS = [
    {"batch": 2, "tokens_of_each_rank": 3, "width": 24, "eps": 0.3, "type": "float64", "seed": 1},
    {"batch": 1, "tokens_of_each_rank": 4, "width": 33, "eps": 0.05, "type": "float32", "seed": 2},
    {"batch": 3, "tokens_of_each_rank": 1, "width": 16, "eps": 0.1, "type": "float64", "seed": 3},
]
MOST = 4  # times the memory of its own tokens that a rank may keep for the backward pass


@exercise(SEQUENCE_NORM, TOKENS, title="A norm on its own part of the sequence", difficulty=3, minutes=30, ranks=(4, 2))
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
    fault = f"for the backward pass autograd keeps more than {MOST} times the memory of x: norm first, then gather"
    refuse(most > MOST, fault, measured=f"{most:.1f} times")
    return seen


NORMS = '    plan |= {f"blocks.*.{name}": SequenceParallel() for name in ("norm1", "norm2")}\n'
CUT = Reference("tensor_parallelism", "cut", {
    "the gradients of the blocks' norms are those of this rank's tokens: SequenceParallel() makes them those of all":
        {NORMS: ""},
    "the gradient of the last norm is that of this rank's tokens: SequenceParallel() makes it that of all":
        {'"norm": SequenceParallel()': '"norm": PrepareModuleOutput(output_layouts=Shard(1), '
                                       "desired_output_layouts=Replicate(), use_local_output=False)",
         "input_layouts=Shard(1), output_layouts=Replicate()": "output_layouts=Replicate()"},
})  # fmt: skip
MODELS = [
    {"layers": 2, "batch": 2, "type": "float64", "seed": 1},
    {"layers": 1, "batch": 1, "type": "float32", "seed": 2},
]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@exercise(CUT, MODELS, title="A plan for a whole Llama", difficulty=3, minutes=30, ranks=(2, 4))
def whole_model(case: dict[str, Any], cut: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``cut(model, mesh)``, which changes the model in its place."""
    ranks, layers, length = dist.get_world_size(), case["layers"], 8
    torch.manual_seed(case["seed"])
    config = models.LlamaConfig(layers=layers, heads=8, kv_heads=4, width=32, hidden=48, vocabulary=40)
    model = models.Llama(config).to(getattr(torch, case["type"]))
    whole = {name: one.shape for name, one in model.named_parameters()}
    tables = [f"{name}.weight" for name, one in model.named_modules() if isinstance(one, Linear | Embedding)]
    tokens = torch.randint(40, (case["batch"], length))
    with watched():
        cut(model, init_device_mesh("cpu", (ranks,)))
    parameters = dict(model.named_parameters())
    uncut = [name for name in tables if local(parameters[name]).numel() * ranks != whole[name].numel()]
    refuse(uncut, f"{uncut[0] if uncut else ''} is not cut: each rank keeps one part of {ranks}")
    between: list[torch.Size] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, inputs: between.append(local(inputs[0]).shape))
    with watched() as forward:
        y = model(tokens)
    part = torch.Size([case["batch"], length // ranks, 32])
    fault = "what a block gets is not this rank's part of the sequence"
    refuse(any(shape != part for shape in between), fault, measured=[*between[0]], expected=[*part])
    mine = passes.tensor(local(y), (case["batch"], length, 40), "what a rank has of the scores")
    upstream = torch.randn(mine.shape, dtype=mine.dtype)
    with watched() as backward:
        mine.backward(upstream)
    seen: dict[str, Any] = {"the scores": mine.detach().clone()}
    x = case["batch"] * length * 32 * mine.element_size()  # bytes of the whole sequence
    for wire, way, gathers, most in (
        (forward, "forward", 2 * layers + 2, (2 * layers + 1) * (x + x // ranks) + mine.nbytes // ranks),
        (backward, "backward", 2 * layers + 1, (2 * layers + 1) * (x + x // ranks)),
    ):
        found, right = passes.handed_in(wire.calls), f"{gathers} all-gathers and {2 * layers + 1} reduce-scatters"
        fault = f"{way}, more collectives than needed: q, k and v share one all-gather, gate and up too"
        refuse(len(wire.calls) > gathers + 2 * layers + 1, fault, measured=found, expected=right)
        refuse(wire.sent() > most, f"{way}, more bytes than needed", measured=found, expected=f"{most} bytes")
    for name, one in parameters.items():
        gradient = one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad
        seen[f"the gradient of {name}"] = "there is none" if gradient is None else gradient.clone()
    return seen
