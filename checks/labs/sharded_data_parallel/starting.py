"""Check of ``start``: a model that is built on meta, sharded by ``fully_shard``, and filled where the shards are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import kind_of
from utils.ranks.recorder import record_collectives

BLOCKS = "    for block in model:\n        fully_shard(block, mp_policy=policy)\n"
FILL = '        if hasattr(module, "reset_parameters"):\n            module.reset_parameters()\n'
WHOLE, POLICY = "    fully_shard(model, mp_policy=policy)\n", "torch.bfloat16, torch.float32"
OFFICIAL = Reference("sharded_data_parallel", "start", {
    "the whole model is one group, so all of it is gathered at once: shard each block first": {BLOCKS: ""},
    "what is in no block is not sharded: call fully_shard on the model, too, after its blocks": {WHOLE: ""},
    "parameters are gathered in float32: param_dtype says in which type": {POLICY: "torch.float32, torch.float32"},
    "gradients are reduced in bfloat16: reduce_dtype says in which type": {POLICY: "torch.bfloat16, torch.bfloat16"},
    "the shards themselves are bfloat16: the optimizer needs them in float32":
        {"    for block in model:\n": "    model.bfloat16()\n    for block in model:\n"},
    "blocks keep what they have gathered for the forward pass":
        {"fully_shard(block, mp": "fully_shard(block, reshard_after_forward=False, mp"},
    "nobody has filled the shards: to_empty leaves in them what was there": {FILL: "            pass\n"},
    "only the blocks themselves are filled: reset_parameters is called for every module": {"model.modules()": "model"},
})  # fmt: skip
CASES = [{"blocks": 2, "width": 6}, {"blocks": 3, "width": 5}]


class Part(nn.Module):
    """A weight and a buffer, filled by ``reset_parameters`` with a number; and what comes before it, in its blocks."""

    def __init__(self, width: int, number: float, *blocks: nn.Module) -> None:
        super().__init__()
        self.number, self.filled, self.weight = number, False, nn.Parameter(torch.empty(width, width))
        self.register_buffer("shift", torch.empty(width))
        self.blocks = nn.ModuleList(blocks)

    def __iter__(self) -> Any:
        return iter(self.blocks)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.filled = not self.weight.is_meta
        self.weight.fill_(self.number / 64)
        self.shift.fill_(-self.number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        x = x.to(self.weight.dtype)
        return x @ self.weight.t() + self.shift.to(x.dtype)


@exercise(OFFICIAL, CASES, title="The library's call", difficulty=2, minutes=15, ranks=(3, 2))
def start(case: dict[str, Any], start: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``start(build)``, which returns a model that has begun on meta, sharded by ``fully_shard``."""
    devices = []

    def build() -> Part:
        devices.append(torch.empty(0).device.type)
        width = case["width"]
        return Part(width, 0.5, *(Part(width, n + 1.0, Part(width, n + 9.0)) for n in range(case["blocks"])))

    model = start(build)
    refuse(not isinstance(model, nn.Module), "the result is not the model", measured=kind_of(model))
    refuse(devices != ["meta"], "build() is called once, with meta as the device", measured=", ".join(devices))
    empty = [name for name, one in [*model.named_parameters(), *model.named_buffers()] if one.is_meta]
    refuse(empty, "it is still on meta: call to_empty", measured=", ".join(empty))
    seen = {f"the type of {name}": f"{one.dtype} in {type(one).__name__}" for name, one in model.named_parameters()}
    for name, part in model.named_modules():
        for one in [part.weight, part.shift] if getattr(part, "filled", False) else []:
            values = one.full_tensor() if isinstance(one, DTensor) else one.clone()
            seen[f"the filled values of {name or 'the model'}, {one.dim()} dimensions"] = values.detach()
    with record_collectives() as record:
        y = model(torch.ones(2, case["width"]))
        forward = len(record.calls)
        y.float().sum().backward()
    calls = [f"{one.name} {one.bytes}" for one in record.calls]
    return seen | {"what is handed in, forward": calls[:forward], "what is handed in, backward": calls[forward:]}
