"""Check of ``cut``: torch's own parallel layers for a whole Llama, the sequence cut between them."""

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

NORMS = '    plan |= {f"blocks.*.{name}": SequenceParallel() for name in ("norm1", "norm2")}\n'
OFFICIAL = Reference("tensor_parallelism", "cut", {
    "the gradients of the blocks' norms are those of this rank's tokens: SequenceParallel() makes them those of all":
        {NORMS: ""},
    "the gradient of the last norm is that of this rank's tokens: SequenceParallel() makes it that of all":
        {'"norm": SequenceParallel()': '"norm": PrepareModuleOutput(output_layouts=Shard(1), '
                                       "desired_output_layouts=Replicate(), use_local_output=False)",
         "input_layouts=Shard(1), output_layouts=Replicate()": "output_layouts=Replicate()"},
})  # fmt: skip
CASES = [
    {"layers": 2, "batch": 2, "type": "float64", "seed": 1},
    {"layers": 1, "batch": 1, "type": "float32", "seed": 2},
]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@exercise(OFFICIAL, CASES, title="A plan for a whole Llama", difficulty=3, minutes=30, ranks=(2, 4))
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
    words = "what a block gets is not this rank's part of the sequence"
    refuse(any(shape != part for shape in between), words, measured=[*between[0]], expected=[*part])
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
        words = f"{way}, more collectives than needed: q, k and v share one all-gather, gate and up too"
        refuse(len(wire.calls) > gathers + 2 * layers + 1, words, measured=found, expected=right)
        refuse(wire.sent() > most, f"{way}, more bytes than needed", measured=found, expected=f"{most} bytes")
    for name, one in parameters.items():
        gradient = one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad
        seen[f"the gradient of {name}"] = "there is none" if gradient is None else gradient.clone()
    return seen
