"""Check of ``train_uneven``: all ranks take all steps, with the gradient that one process would have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import Reference, leaves, refuse, watched
from checks.engine.plain import from_array, kind_of, number
from checks.engine.watching import explained

COUNT, WEIGHT = "        count = torch.tensor(len(y))\n", " * (len(y) / count)"
CLEAR, STEP = "        optimizer.zero_grad(set_to_none=False)\n", "        optimizer.step()\n        steps += 1"
DATA, ENDS = "        if len(y):\n", "        if count == 0:\n            return steps\n"
OFFICIAL = Reference("feeding_the_ranks", "train_uneven", {
    "the ranks' means are added up and divided by the world size, so a rank without data pulls the step towards zero, "
    "and a sample in a small batch weighs more than one in a large one":
        {"len(y) / count": "1 / dist.get_world_size()"},
    "each rank's mean weighs the same, so a sample in a small batch weighs more than one in a large one: weigh by the "
    "number of samples":
        {COUNT: "        count = torch.tensor(int(len(y) > 0))\n", "len(y) / count": "1 / count"},
    "the ranks' means are added up: nobody divides by how many there are, or weighs them": {WEIGHT: ""},
    "the gradients of the last step are still there: clear them before backward(), also without data": {CLEAR: ""},
    "a rank without data still hands in the gradient of the last step: zeros are what it has":
        {CLEAR: DATA + "    " + CLEAR},
    "a rank without data takes the step too: its weights must stay those of the others": {STEP: DATA + "    " + STEP},
    "there is a step without any data, and the optimizer's momentum moves the weights on":
        {ENDS: "", "(len(y) / count)": "(len(y) / max(count, 1))",
         STEP: STEP + "\n        if count == 0:\n            return steps - 1"},
    "train_uneven returns the number of all steps, on every rank: this is that of the rank's own batches":
        {"steps += 1": "steps += len(y) > 0"},
})  # fmt: skip
_SIZES = [[4], [1], []], [[4, 3, 2], [1], [2, 2]], [[], [3, 5], [2, 1, 1]], [[], [], []], [[200, 1], [120], [9]]
CASES = [{"samples_of_the_batches": sizes, "trained_before": number == 1} for number, sizes in enumerate(_SIZES)]
COUNT_BYTES = 16  # what a step may say beside its gradients


class _Optimizer:
    """SGD with momentum. It notes at each step what the gradient is, and what the weights are afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.param_groups = [{"params": self.parameters, "lr": 0.5}]
        self.moving = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.gradients: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None if set_to_none or parameter.grad is None else parameter.grad.zero_()

    def step(self, closure: Any = None) -> None:
        gradients = [parameter.grad for parameter in self.parameters]
        words = f"in step {len(self.weights)} parameters have no gradient: hand in zeros where a rank has no data"
        refuse(any(one is None for one in gradients), words)
        self.gradients.append(_flat(gradients))
        with torch.no_grad():
            for parameter, moving, gradient in zip(self.parameters, self.moving, gradients, strict=True):
                moving.mul_(0.9).add_(gradient)
                parameter.sub_(moving, alpha=self.param_groups[0]["lr"])
        self.weights.append(_flat(self.parameters))


def play(case: dict[str, Any], train_uneven: Callable[..., Any]) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    every = case["samples_of_the_batches"][:ranks]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4, bias=False), nn.Dropout(0.5).eval())
    optimizer = _Optimizer(model)
    for parameter in optimizer.parameters if case["trained_before"] else ():
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(rank)
    batches = [(torch.randn(size, 2) + rank, torch.randint(4, (size,))) for size in every[rank]]
    drawn: list[int] = []  # steps done when each batch was asked for

    def stream() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in batches:
            drawn.append(len(optimizer.weights))
            yield batch

    modes = [module.training for module in model.modules()]
    words = "A rank without data still takes part, with zeros, while anybody has data"
    with leaves(batches=batches), explained(words), watched() as wire:
        returned = from_array(train_uneven(model, optimizer, stream()))
    words = "train_uneven changes modes of the model (train, eval): these belong to the caller"
    refuse(modes != [module.training for module in model.modules()], words)
    words = "train_uneven stops before its batches are used up: while one rank has more data, all others take part"
    refuse(len(drawn) < len(batches), words, measured=f"{len(drawn)} of {len(batches)} batches")
    ahead = max((place - done for place, done in enumerate(drawn)), default=0)
    words = "train_uneven reads its batches before it takes its steps, and a data set does not fit into memory: "
    refuse(ahead > 1, words + "ask for one at a time", measured=f"{ahead} batches ahead", expected="at most 1")
    steps = number(returned, whole=True)
    refuse(steps is None, "train_uneven returns the number of steps", measured=kind_of(returned))
    if steps == len(optimizer.weights) == max(map(len, every)):
        most = steps * (len(optimizer.parameters) + 1) + 1
        words = "more collectives than needed: beside the gradients one a step, and one at the end, tell who has data"
        refuse(len(wire.calls) > most, words, measured=len(wire.calls), expected=f"at most {most}")
        most = (steps + 1) * (sum(parameter.nbytes for parameter in optimizer.parameters) + COUNT_BYTES)
        words = "more bytes than needed: the gradients, and two numbers a step"
        refuse(wire.sent() > most, words, measured=wire.sent(), expected=f"at most {most}")
    return {
        "the number of steps that the optimizer takes": len(optimizer.weights),
        "the number that is returned": steps,
        "the gradient of each step": optimizer.gradients,
        "the weights after each step": optimizer.weights,
    }


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
