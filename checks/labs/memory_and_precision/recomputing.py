"""Check of ``checkpointed``: a chain of functions on a simulated GPU: what is held, computed again and drawn."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.tensor  # a simulated GPU asks for it in its first step: half a second, so before the fork
from torch import Tensor, nn
from torch.nn.functional import dropout

import simgpu
from checks.engine import Reference, exercise, gpus, refuse
from checks.engine.plain import kind_of

APPLY, SAVE = "return Again.apply(function, *tensors)", "ctx.save_for_backward(*tensors)"
INPUTS = "[one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]"
SET, BACK = "        torch.simgpu.set_rng_state(ctx.random)\n", "        torch.simgpu.set_rng_state(now)\n"
BACKWARD, RETURN = "torch.autograd.backward(result, gradient)", "return None, *(one.grad for one in tensors)"
OFFICIAL = Reference("memory_and_precision", "checkpointed", {
    "that is a plain call: everything is kept for the backward pass": {APPLY: "return function(*tensors)"},
    "the graph of the first run is kept, with all activations":
        {"        return function(*tensors)\n": "        with torch.enable_grad():\n            ctx.kept = "
         "function(*[one.detach().requires_grad_() for one in tensors])\n        return ctx.kept.detach()\n"},
    "copies of the tensors are kept: keep the tensors themselves, with ctx.save_for_backward":
        {SAVE: "ctx.save_for_backward(*[one.clone().requires_grad_(one.requires_grad) for one in tensors])"},
    "the graph of the second run is still there after the backward pass":
        {BACKWARD: f"{BACKWARD[:-1]}, retain_graph=True)\n        ctx.kept = result"},
    "dropout draws other random numbers in the second run: set the state that you found before the first": {SET: ""},
    "those are the random numbers of the CPU or of GPU 0, and the tensors are on another GPU":
        {"torch.simgpu.get_rng": "torch.get_rng", "torch.simgpu.set_rng": "torch.set_rng"},
    "after backward the GPU draws again what it has drawn: put back the state found when backward began": {BACK: ""},
    "the state to put back is that of when backward began, and not that of before the first run": {BACK: SET},
    "in backward autograd records nothing, unless under torch.enable_grad()": {"with torch.enable_grad():": "if True:"},
    "the second run's tensors have to ask for gradients, as those of the first":
        {INPUTS: "[one.detach() for one in ctx.saved_tensors]"},
    "the second run still belongs to the graph before it: detach its tensors": {INPUTS: "ctx.saved_tensors"},
    "only the first tensor gets its gradient": {RETURN: "return None, tensors[0].grad, *[None] * (len(tensors) - 1)"},
    "parameters get no gradient: autograd.grad brings gradients only to the tensors that it is given":
        {BACKWARD: "asked = [one for one in tensors if one.requires_grad]\n        "
         "for one, found in zip(asked, torch.autograd.grad(result, asked, gradient)):\n            one.grad = found"},
    "the gradient that arrives in backward is not used": {"(result, gradient)": "(result, torch.ones_like(result))"},
    "under torch.no_grad() it is a plain call, without a graph": {APPLY: f"with torch.enable_grad():\n        {APPLY}"},
})  # fmt: skip
WIDTH = 64
CASES = [
    {"GPU": 0, "dropout": 0.0, "tensors": 1, "gradients_for": "all"},
    {"GPU": 0, "dropout": 0.3, "tensors": 1, "gradients_for": "all"},
    {"GPU": 1, "dropout": 0.2, "tensors": 2, "gradients_for": "the second"},
    {"GPU": 0, "dropout": 0.4, "tensors": 3, "gradients_for": "all"},
]


class Piece(nn.Module):
    """Two layers with dropout; the other tensors are factors. It counts how often it runs."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.up, self.down, self.p, self.runs = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), p, 0

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        self.runs += 1
        inner = dropout(torch.tanh(self.up(x)), self.p)
        for one in others:
            inner = inner * one
        return x + self.down(torch.sigmoid(inner))


@exercise(OFFICIAL, CASES, title="Compute it again", difficulty=3, minutes=30)
def checkpointed(case: dict[str, Any], checkpointed: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``checkpointed(function, *tensors)``, which keeps only the tensors."""
    gc.freeze()  # what is there now need not be looked through again
    simgpu.cluster(gpus_per_node=2)
    gpu, device = case["GPU"], simgpu.device(case["GPU"])
    torch.simgpu.set_device(gpu)
    torch.manual_seed(1)
    with device:
        chain = [Piece(case["dropout"]) for _ in range(3)]
        tensors = [torch.randn(30, WIDTH), torch.randn(4 * WIDTH), torch.randn(4 * WIDTH)][: case["tensors"]]
    for one in tensors if case["gradients_for"] == "all" else tensors[1:]:
        one.requires_grad_()
    for one in chain[0].parameters():  # of a backward pass before this one
        one.grad = torch.full_like(one, 0.001)
    before, x, results, found = _held(gpu, chain, tensors), tensors[0], 0, dict[str, Any]()
    for piece in chain:
        x = checkpointed(lambda *given, piece=piece: piece(*given), x, *tensors[1:])
        fault = "checkpointed returns what the function returns, a tensor that autograd can go back from"
        fine = isinstance(x, Tensor) and x.grad_fn is not None
        refuse(not fine, fault, measured="a tensor without a graph" if isinstance(x, Tensor) else kind_of(x))
        results += gpus.rounded(x.nbytes)
    found["the result of three functions, one after the other"] = x.detach().cpu()
    found["the runs of each function in the forward pass"] = [piece.runs for piece in chain]
    found["the bytes that are kept beside the results"] = max(0, _held(gpu, chain, tensors) - before - results)
    found["the random numbers that the GPU draws after the forward pass"] = torch.rand(3, device=device).cpu()
    try:
        x.backward(x.detach() / x.numel())
    except Exception as error:
        return found | {"how the backward pass ends": f"{type(error).__name__}: {error}"}
    found["how the backward pass ends"] = "well"
    found["the runs of each function in all"] = [piece.runs for piece in chain]
    named = {f"tensor {number}": one for number, one in enumerate(tensors)}
    named |= {f"function {i}'s {name}": one for i, piece in enumerate(chain) for name, one in piece.named_parameters()}
    for name, one in named.items():
        found[f"the gradient of {name}"] = None if one.grad is None else one.grad.cpu()
    found["the random numbers that the GPU draws after the backward pass"] = torch.rand(3, device=device).cpu()
    left = _held(gpu, chain, tensors) - before - results
    found["the bytes that stay after the backward pass, beside results and gradients"] = max(0, left)
    with torch.no_grad():
        found["whether the result has a graph under torch.no_grad()"] = checkpointed(chain[0], *tensors).requires_grad
    found["the runs of the first function, with one more under torch.no_grad()"] = chain[0].runs
    return found


def _held(gpu: int, chain: list[Piece], tensors: list[Tensor]) -> int:
    """The bytes on the GPU that are no gradients of these."""
    known = [*tensors, *(one for piece in chain for one in piece.parameters())]
    return gpus.held()[gpu] - sum(gpus.rounded(one.grad.nbytes) for one in known if one.grad is not None)
