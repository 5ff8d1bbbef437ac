"""What one device computes in one go, and what known mistakes in a pipeline compute instead."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

from utils.checks.verdicts import Wrong

SAME = 1e-3  # gradients in float32, added up in another order, differ by less than this share of the largest


class Reference:
    """What one device computes in one go, and what known mistakes compute."""

    def __init__(self, stages: Sequence[Any], batch: Any, targets: Any, loss_fn: Any, m: int) -> None:
        from torch import nn

        self.m = m
        self.sizes = [len(parameters) for parameters in (list(stage.parameters()) for stage in stages)]
        self.model = nn.Sequential(*copy.deepcopy(list(stages)))
        self.loss, self.gradients = self._run(batch, targets, loss_fn)
        self.parts = {}
        for split in ("tensor_split", "chunk", "all but the rest"):
            pieces = _split(split, batch, targets, m)
            self.parts[split] = [(len(x) / len(batch), *self._run(x, y, loss_fn)) for x, y in pieces]

    def _run(self, x: Any, y: Any, loss_fn: Any) -> tuple[float, list[Any]]:
        self.model.zero_grad()
        loss = loss_fn(self.model(x), y)
        loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in self.model.parameters()]

    def judge(self, where: str, loss: Any, gradients: list[list[Any]]) -> None:
        """Are gradients and loss those of one device? If not: those of which mistake?"""
        import torch

        without = [i for i, stage in enumerate(gradients) if any(gradient is None for gradient in stage)]
        if len(without) == len(gradients):
            raise Wrong(f"{where}: no stage has gradients: backward is missing, or ran on copies of the stages.")
        if without:
            raise Wrong(
                f"{where}: the parameters of stage {without[0]} have no gradients: a tensor was detached on its way to "
                "the next GPU, and its gradient was not sent back.",
                measured=f"stages with gradients: {[i for i in range(len(gradients)) if i not in without]}",
                expected="all",
            )
        found = [gradient.cpu() for stage in gradients for gradient in stage]
        if not _same(found, self.gradients):
            raise self._wrong(where, found)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise Wrong(f"{where}: return the loss, as a tensor with one number", measured=loss)
        value = float(loss.detach().cpu())
        if abs(value - self.loss) > SAME * abs(self.loss):
            times_m = abs(value / self.m - self.loss) <= SAME * abs(self.loss)
            why = "the sum of the micro-batches' losses without their weights" if times_m else "not that of the batch"
            raise Wrong(f"{where}: the loss that you return is {why}", measured=value, expected=self.loss)

    def _wrong(self, where: str, found: list[Any]) -> Wrong:
        if _same(found, [self.m * gradient for gradient in self.gradients]):
            sentence = "each micro-batch counts fully: weight its loss by its share of the batch"
            return Wrong(f"{where}: the gradients are {self.m} times too large; {sentence}.")
        for parts in self.parts.values():
            weights = [share for share, *_ in parts]
            if sum(weights) < 1 - SAME and any(_same(found, mixed(w, parts)) for w in (weights, [1 / self.m] * self.m)):
                return Wrong(f"{where}: the samples at the end of the batch are left out: m need not divide it.")
            for weights, sentence in self._mistakes(parts):
                if _same(found, mixed(weights, parts)):
                    return Wrong(f"{where}: {sentence}.")
        off = next(
            i for i, pair in enumerate(zip(found, self.gradients, strict=True)) if not _same(*([x] for x in pair))
        )
        stage = next(i for i, end in enumerate(itertools.accumulate(self.sizes)) if off < end)
        worst = float((found[off] - self.gradients[off]).abs().max() / self.gradients[off].abs().max())
        return Wrong(
            f"{where}: the gradients of stage {stage} are not those of one device that gets the whole batch",
            measured=f"the largest is off by {worst:.3g} times its size",
        )

    def _mistakes(self, parts: Sequence[tuple[float, float, Any]]) -> list[tuple[list[float], str]]:
        shares, count = [share for share, *_ in parts], len(parts)
        last = [0.0] * (count - 1)
        mean = (
            "every micro-batch has the same weight, but they are not of the same size: the mean of their means is not "
            "the mean over the batch; weight each by its share of the samples"
        )
        only = "only one micro-batch's gradients are left: later ones must be added to .grad, not replace it"
        return [
            ([1.0] * count, "each micro-batch counts fully: weight its loss by its share of the batch"),
            ([1 / count] * count, mean),
            ([1 / self.m] * count, mean),
            ([*last, 1.0], only),
            ([*last, 1 / self.m], only),
            ([*last, shares[-1]], only),
            ([shares[0], *last], only),
        ]


def mixed(weights: Sequence[float], parts: Sequence[tuple[float, float, Any]]) -> list[Any]:
    """The gradients that micro-batches give together, each with its weight."""
    by_parameter = zip(*(gradients for _, _, gradients in parts), strict=True)
    return [sum(weight * one for weight, one in zip(weights, group, strict=True)) for group in by_parameter]


def _same(found: Sequence[Any], right: Sequence[Any]) -> bool:
    pairs = zip(found, right, strict=True)
    return all(
        one.shape == two.shape and float((one - two).abs().max()) <= SAME * float(two.abs().max()) for one, two in pairs
    )


def _split(how: str, batch: Any, targets: Any, m: int) -> list[tuple[Any, Any]]:
    if how == "all but the rest":
        size = max(1, len(batch) // m)
        return list(zip(batch.split(size)[:m], targets.split(size)[:m], strict=True))
    return list(zip(getattr(batch, how)(m), getattr(targets, how)(m), strict=True))
