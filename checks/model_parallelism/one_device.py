"""What one device computes in one go, and what known mistakes in a pipeline compute instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Facts, compare

if TYPE_CHECKING:
    from torch import Tensor, nn

ROUNDINGS = 200  # one after the other, in the forward and backward of these stages
Named = dict[str, Any]
_SPLITS = ("tensor_split", "chunk", "all but the rest")


def reference(model: nn.Sequential, batch: Tensor, targets: Tensor, loss_fn: Any, m: int, parts: bool) -> Facts:
    """Loss and gradients of a model on the host; with ``parts`` also those of each micro-batch."""
    loss, own = _run(model, batch, targets, loss_fn)
    found: Facts = {"loss": loss, "own": own, "parts": {}}
    for split in _SPLITS if parts else ():
        pieces = _split(split, batch, targets, m)
        found["parts"][split] = [[len(x) / len(batch), *_run(model, x, y, loss_fn)] for x, y in pieces]
    model.zero_grad()
    return found


def _run(model: nn.Sequential, x: Tensor, y: Tensor, loss_fn: Any) -> tuple[Tensor, Named]:
    from checks.contracts.snapshot import gradients

    model.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    return loss.detach(), gradients(model)


def _split(how: str, batch: Tensor, targets: Tensor, m: int) -> list[tuple[Tensor, Tensor]]:
    if how == "all but the rest":
        size = max(1, len(batch) // m)
        return list(zip(batch.split(size)[:m], targets.split(size)[:m], strict=True))
    return list(zip(getattr(batch, how)(m), getattr(targets, how)(m), strict=True))


def judge_numbers(step: Facts, m: int) -> Iterator[Broken]:
    """Are gradients and loss those of one device? If not: those of which mistake?"""
    own, got, before = step["own"], step["gradients"], step["before"]
    stages = sorted({name.split(".")[0] for name in own})
    without = [stage for stage in stages if any(name.startswith(f"{stage}.") and name not in got for name in own)]
    if len(without) == len(stages):
        yield Broken("value:1 none", "no stage has gradients: backward is missing, or ran on copies of the stages")
        return
    if without:
        words = f"the parameters of stage {without[0]} have no gradients: a tensor was detached on its way to the next "
        words += "GPU, and its gradient was not sent back"
        yield Broken("value:1 cut", words, f"without: {without}", "none")
        return
    if extra := sorted(set(got) - set(own)):
        yield Broken("value:1 extra", f"`{extra[0]}` gets a gradient, though it is frozen")
    added = {name: one - before[name] if name in before else one for name, one in got.items()}
    if not _same(added, own):
        yield _wrong(step, added, m)
        return
    loss = step["got"]
    if loss["kind"] != "tensor" or loss["value"].numel() != 1:
        seen = loss["kind"] if loss["kind"] != "tensor" else list(loss["value"].shape)
        yield Broken("value:2 kind", "return the loss, as a tensor with one number", seen)
    elif loss["place"] != step["last"]:
        yield Broken("value:2 place", "the loss that you return is in the wrong place", loss["place"], step["last"])
    else:
        guesses = {"is the sum of the micro-batches' losses without their weights": step["loss"] * m}
        for parts in step["parts"].values():
            guesses["is the sum of the micro-batches' losses without their weights"] = sum(one[1] for one in parts)
        value, what = loss["value"].reshape(()), "the loss that you return, which is that of the whole batch,"
        yield from compare("value:3 loss", what, value, [step["loss"]], guesses=guesses, steps=ROUNDINGS)


def _same(got: Named, right: Named) -> bool:
    everything = list(right.values())
    return not any(
        broken
        for name, one in right.items()
        for broken in compare("value:", name, got.get(name), [one], steps=ROUNDINGS, beside=everything)
    )


def _wrong(step: Facts, got: Named, m: int) -> Broken:
    if step["before"] and _same(step["gradients"], step["own"]):
        words = "the gradients that were there before the step are lost: add to them, as backward does"
        return Broken("value:1 before", words)
    own, more = step["own"], "each micro-batch counts fully; weight its loss by its share of the batch"
    if m > 1 and _same(got, {name: m * one for name, one in own.items()}):
        return Broken("value:1 times", f"the gradients are {m} times too large: {more}")
    for parts in step["parts"].values():
        shares = [share for share, *_ in parts]
        if sum(shares) < 0.999 and any(_same(got, _mixed(w, parts)) for w in (shares, [1 / m] * m)):
            return Broken("value:1 rest", "the samples at the end of the batch are left out: m need not divide it")
        for weights, sentence in _mistakes(shares, m):
            if _same(got, _mixed(weights, parts)):
                return Broken("value:1 weights", sentence)
    name = next(name for name, one in own.items() if not _same({name: got[name]}, {name: one}))
    words = f"the gradients of stage {name.split('.')[0]} are not those of one device that gets the whole batch"
    off = float((got[name] - own[name]).abs().max() / own[name].abs().max().clamp(min=1e-30))
    return Broken("value:1 other", words, f"`{name}` is off by {off:.3g} times its size")


def _mistakes(shares: list[float], m: int) -> list[tuple[list[float], str]]:
    count = len(shares)
    last = [0.0] * (count - 1)
    full = "each micro-batch counts fully: weight its loss by its share of the batch"
    mean = (
        "every micro-batch has the same weight, but they are not of the same size: the mean of their means is not the "
        "mean over the batch; weight each by its share of the samples"
    )
    only = "only one micro-batch's gradients are left: later ones must be added to .grad, not replace it"
    return [
        ([1.0] * count, full),
        ([1 / count] * count, mean),
        ([1 / m] * count, mean),
        ([*last, 1.0], only),
        ([*last, 1 / m], only),
        ([*last, shares[-1]], only),
        ([shares[0], *last], only),
    ]


def _mixed(weights: Sequence[float], parts: Sequence[Any]) -> Named:
    """The gradients that micro-batches give together, each with its weight."""
    return {name: sum(w * one[2][name] for w, one in zip(weights, parts, strict=True)) for name in parts[0][2]}
