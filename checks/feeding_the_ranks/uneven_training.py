"""In a rank: a training whose batches run out, and what is noted at each step of its optimizer."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Case, Facts

if TYPE_CHECKING:
    from torch import Tensor, nn


class Optimizer:
    """SGD with momentum and weight decay. (The real one imports torch's compiler, which takes seconds.)

    What the check notes at each step stands beside ``__dict__``, where changes are looked for.
    """

    __slots__ = ("__dict__", "_at_step", "_moving")

    def __init__(self, model: nn.Module, case: Case, at_step: Any) -> None:
        how = {"lr": case["lr"], "momentum": case["momentum"], "weight_decay": case["weight decay"]}
        self.param_groups = [{"params": list(model.parameters()), **how}]
        self._moving: dict[int, Tensor] = {}
        self._at_step = at_step

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and not set_to_none:
                parameter.grad.detach_().zero_()
            else:
                parameter.grad = None

    def step(self, closure: Any = None) -> None:
        import torch

        self._at_step(False)
        group = self.param_groups[0]
        with torch.no_grad():
            for place, parameter in enumerate(group["params"]):
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
                self._moving[place] = group["momentum"] * self._moving.get(place, 0) + gradient
                parameter.sub_(self._moving[place], alpha=group["lr"])
        self._at_step(True)

    def state(self) -> str:
        from checks.contracts.snapshot import digest

        group = self.param_groups[0]
        how = [repr(value) for name, value in group.items() if name != "params"]
        return " ".join([*how, *(digest(one) for one in (*group["params"], *self._moving.values()))])


def model_of(case: Case) -> nn.Module:
    """Two to four layers, maybe with a tied weight, and with a buffer; modes are mixed, somebody has a hook there."""
    import torch
    from torch import nn

    dice, kept = random.Random(case["seed"]), torch.get_rng_state()
    torch.manual_seed(case["seed"])
    width = dice.randint(2, 5)
    layers: list[nn.Module] = [nn.Linear(dice.randint(1, 4), width), nn.Tanh()]
    for _ in range(dice.randint(0, 2)):
        layers += [nn.Linear(width, width, bias=dice.random() < 0.5), nn.Tanh()]
    if len(layers) == 6:
        layers[4].weight = layers[2].weight
    model = nn.Sequential(*layers, nn.Linear(width, dice.randint(2, 5))).to(getattr(torch, case["type"]))
    torch.set_rng_state(kept)
    model.register_buffer("buffer", torch.ones(3))
    for module in model.modules():
        module.training = dice.random() < 0.5
    model[0].weight.register_hook(_same)
    return model


def _same(gradient: Tensor) -> Tensor:
    return gradient


class Training:
    """Of one rank: its batches, and what happens at each step of its optimizer."""

    def __init__(self, case: Case, rank: int) -> None:
        import torch

        self.model = model_of(case)
        self.twin = copy.deepcopy(self.model)
        for parameter in self.model.parameters() if case["gradients"] else ():  # of what was trained before
            parameter.grad = torch.ones_like(parameter)
        self.twin[0].weight._backward_hooks = None
        self.optimizer = Optimizer(self.model, case, self.at_step)
        generator = torch.Generator().manual_seed(case["seed"] + rank)
        inputs, classes = self.model[0].in_features, self.model[-1].out_features
        self.batches, self.given = [], []
        for size in case["sizes"][rank]:
            x = torch.randn(size, inputs, generator=generator, dtype=torch.float64) + rank
            y = torch.randint(classes, (size,), generator=generator)
            self.batches.append((x.to(self.model[0].weight.dtype), y))
        self.drawn: list[int] = []  # steps done when each batch was asked for
        self.steps: list[Facts] = []

    def stream(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.batches:
            self.drawn.append(len(self.steps))
            self.given.append((x.clone(), y.clone()))
            yield self.given[-1]

    def at_step(self, over: bool) -> None:
        if over:
            self.steps[-1]["after"] = self.optimizer.state()
            return
        gradients = [parameter.grad for parameter in self.model.parameters()]
        got = None if None in gradients else _flat(gradients)
        self.steps.append({"got": got, "own": self._own(), "before": self.optimizer.state()})

    def _own(self) -> Tensor | None:
        """The gradients of this step's samples, a row for each, with the weights of this moment."""
        import torch

        if len(self.steps) >= len(self.batches):
            return None
        with torch.enable_grad():
            pairs = zip(self.twin.parameters(), self.model.parameters(), strict=True)
            for mine, theirs in pairs:
                mine.data.copy_(theirs.detach())
            x, y = self.batches[len(self.steps)]
            losses = torch.nn.functional.cross_entropy(self.twin(x), y, reduction="none")
            parameters = list(self.twin.parameters())
            rows = [_flat(torch.autograd.grad(one, parameters, retain_graph=True)) for one in losses]
        return torch.stack(rows)

    def changed(self) -> bool:
        pairs = zip(self.given, self.batches, strict=False)
        return any(not (x.equal(mine) and y.equal(theirs)) for (x, y), (mine, theirs) in pairs)


def _flat(tensors: Sequence[Any]) -> Tensor:
    import torch

    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
