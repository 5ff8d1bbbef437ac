"""Check of ``account``: small networks with what is easily counted wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.plain import from_array, shorten

ROUND, KEY = "return -(-nbytes // 512) * 512", "kept[storage.data_ptr()] = storage"
BEFORE, ALL = "[*parameters, *model.buffers(), *inputs]", "sum(blocks(one.nbytes) for one in parameters)"
TRAINABLE, RESULT, PACK = (
    "sum(blocks(one.nbytes) for one in trainable)",
    "        result = loss()\n",
    "    pack(result)\n",
)
OFFICIAL = Reference("memory_and_precision", "account", {
    "a GPU gives blocks of 512 bytes: round each tensor up": {ROUND: "return nbytes"},
    "bytes that just fill their blocks need no block more": {ROUND: "return (nbytes // 512 + 1) * 512"},
    "round each tensor up to blocks, not their sum":
        {ALL: "blocks(sum(one.nbytes for one in parameters))", TRAINABLE: "blocks(sum(p.nbytes for p in trainable))"},
    "each tensor of the optimizer's state is rounded up by itself":
        {"state * gradients": "blocks(state * sum(one.nbytes for one in trainable))"},
    "several operators keep the same memory: count each storage once": {KEY: "kept[len(kept)] = storage"},
    "a view is kept with all the memory behind it: count the bytes of its storage":
        {KEY: "kept[storage.data_ptr()] = tensor", "storage.nbytes()": "storage.nbytes"},
    "parameters are no activations, though backward keeps them too": {BEFORE: "[*model.buffers(), *inputs]"},
    "the batch is no activation: it was there before the forward pass": {BEFORE: "[*parameters, *model.buffers()]"},
    "a buffer is no activation: it was there before the forward pass": {BEFORE: "[*parameters, *inputs]"},
    "what was there before the forward pass is no activation: note which storages were": {BEFORE: "[]"},
    "beside the parameters, the batch was there before the forward pass too, and buffers": {BEFORE: "parameters"},
    "the loss itself is there after the forward pass too: count it among the activations": {PACK: ""},
    "where backward keeps the loss too (that of a square root, say) it is counted twice":
        {PACK: "", "for storage in kept.values())": "for storage in kept.values()) + blocks(result.nbytes)"},
    "under no_grad nothing is kept for backward": {RESULT: f"        with torch.no_grad():\n    {RESULT}"},
    "not only floats are kept: a mask has truth values": {"in before:": "in before and tensor.is_floating_point():"},
    "what modules return is not what backward keeps: functions keep tensors too, and not all outputs are needed":
        {"    with saved_tensors_hooks(pack, lambda tensor: tensor):\n": "    for module in model.modules():\n"
         "        module.register_forward_hook(lambda m, i, out: (pack(out), None)[1])\n    if True:\n"},
    "a frozen parameter has no gradient and no state": {TRAINABLE: ALL},
    "frozen parameters take memory too": {f'"parameters": {ALL}': '"parameters": gradients'},
    "a tied weight is one parameter in two layers: count it once": {"list(model.parameters())":
        "[p for m in model.modules() for p in m._parameters.values() if p is not None]"},
    "buffers are no parameters": {f'"parameters": {ALL}':
        '"parameters": sum(blocks(one.nbytes) for one in [*parameters, *model.buffers()])'},
    "an optimizer keeps `state` tensors for each parameter, not always 2": {"state * gradients": "2 * gradients"},
    "a number may have 2 or 8 bytes, not always 4": {"one.nbytes": "4 * one.numel()"},
})  # fmt: skip
KINDS = "parameters", "gradients", "optimizer state", "activations"
LAYERS, EVERYTHING = "Linear(20, 40), ReLU, Linear(40, 7)", "tied, frozen and gated layers, a mask, a buffer"
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": functional.cross_entropy,
    "mean square": lambda out, classes: out.square().mean(),
    "root mean square": lambda out, classes: out.square().mean().sqrt(),
}
CASES = [
    {"network": LAYERS, "type": "float32", "loss": "cross-entropy", "rows": 30, "state": 2},
    {"network": LAYERS, "type": "float32", "loss": "root mean square", "rows": 64, "state": 1},
    {"network": EVERYTHING, "type": "float32", "loss": "cross-entropy", "rows": 50, "state": 0},
    {"network": EVERYTHING, "type": "float64", "loss": "root mean square", "rows": 64, "state": 1},
    {"network": EVERYTHING, "type": "bfloat16", "loss": "mean square", "rows": 33, "state": 2},
]


class Network(nn.Module):
    """Of a gate both halves of one tensor are kept, of a mask truth values; a mode is not that of the others."""

    def __init__(self, dtype: torch.dtype, width: int = 40) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(20, width), nn.LayerNorm(width)
        self.square, self.again = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.again.weight = self.square.weight
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.gate, self.head = nn.Linear(width, 2 * width), nn.Linear(width, 7)
        self.register_buffer("factors", torch.rand(width) + 0.5)
        self.to(dtype)
        self.head.float()  # so two types, but in a network of float32
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.where(x > 0.1, x, -x)
        x = x + torch.tanh(self.square(self.norm(x))) * self.factors
        gate, x = self.gate(x).chunk(2, dim=-1)
        return self.head(torch.sigmoid(self.again(self.frozen(functional.silu(gate) * x))).to(self.head.weight.dtype))


def made(case: dict[str, Any]) -> tuple[nn.Module, list[Tensor]]:
    """The case's network, and a batch with its classes."""
    dtype, plain = getattr(torch, case["type"]), nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 7))
    model = plain if case["network"] == LAYERS else Network(dtype)
    return model, [torch.randn(case["rows"], 20, dtype=dtype), torch.randint(7, (case["rows"],))]


@exercise(OFFICIAL, CASES, title="Account for a step", difficulty=2, minutes=20)
def account(case: dict[str, Any], account: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``account(model, inputs, loss, state)``, the bytes of a step on a GPU.

    Twice, for two optimizers: what is kept from the first time shows.
    """
    (model, inputs), found = made(case), dict[str, Any]()
    *_, last = model.parameters()
    last.grad = torch.ones_like(last)  # of the step before: it is nobody's to throw away
    for more in ("", ", with one state more"):
        with leaves(model=model, inputs=inputs):
            before = [one.grad if one.grad is None else one.grad.clone() for one in model.parameters()]
            loss = lambda: LOSSES[case["loss"]](model(inputs[0]), inputs[1])  # noqa: E731
            told = account(model, inputs, loss, case["state"] + bool(more))
            fault = "the model's gradients change: their bytes can be predicted without a backward pass"
            refuse(not same([one.grad for one in model.parameters()], before), fault)
        fine = isinstance(told, dict) and set(told) == set(KINDS)
        refuse(not fine, f"account returns a dict with the keys {', '.join(KINDS)}", measured=shorten(told))
        found |= {f"the bytes of the {kind}{more}": from_array(told[kind]) for kind in KINDS}
    return found
