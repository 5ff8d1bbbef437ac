"""Check of ``Accumulating``: micro-batches in silence, and then the mean of what has added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, refuse, watched
from checks.engine.watching import waits
from checks.labs.ddp_and_bucketing import networks
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, gradients, kept

OFF = "before, self.synchronise = self.synchronise, False"
BLOCK = "        try:\n            yield\n        finally:\n            self.synchronise = before\n"
IF = "        if self.synchronise:\n            for"
SUM = "                    dist.all_reduce(parameter.grad)\n"
INIT = "        self.model, self.synchronise = model, True\n"
FINISH = "    def finish(self):\n"
OFFICIAL = Reference(LAB, "Accumulating", {
    "inside the block the gradients travel all the same": {OFF: "before = True"},
    "after the block nothing travels any more: switch it on again as the block ends": {BLOCK: "        yield\n"},
    "after an exception in the block nothing travels any more: use try … finally":
        {BLOCK: "        yield\n        self.synchronise = before\n"},
    "an exception in the block does not come out: use try … finally, or let __exit__ return None":
        {BLOCK: "        with contextlib.suppress(BaseException):\n            yield\n"
                "        self.synchronise = before\n"},
    "as an inner block ends, gradients travel again in the outer one: put back what was there before":
        {"self.synchronise = before": "self.synchronise = True"},
    "a block of another object counts as this one's: keep the flag in the object": {
        "self.model, self.synchronise = model, True": "self.model = model", "self.synchronise":
        "Accumulating.synchronise", "    def __init__": "    synchronise = True\n\n    def __init__"},
    "as the block ends, what has added up travels: only finish() outside of a block sends it":
        {BLOCK: BLOCK + "        self.finish()\n"},
    **MEANS,
    "only the last micro-batch is averaged: average what has added up in `.grad`": {
        INIT: INIT + "        for one in model.parameters():\n            if one.requires_grad:\n"
              "                one.register_hook(self.average)\n\n    def average(self, gradient):\n"
              "        if self.synchronise:\n            gradient = gradient / dist.get_world_size()\n"
              "            dist.all_reduce(gradient)\n        return gradient\n",
        IF: "        if False:\n            for"},
    "inside the block what has added up is divided: leave it alone":
        {IF: "        if True:\n            for", SUM: "                    if self.synchronise:\n    " + SUM},
    "inside the block what has added up is thrown away":
        {FINISH: FINISH + "        if not self.synchronise:\n            self.model.zero_grad()\n"},
})  # fmt: skip
ERRORS = {
    "a block that ends by a ValueError": ValueError,
    "a block that ends by a KeyboardInterrupt": KeyboardInterrupt,
}
BEFORE = "nothing", "a block", "a block in a block", "a block of another object", *ERRORS
CASES = [{"before the last micro-batch": kind, "seed": number} for number, kind in enumerate(BEFORE)]


def play(case: dict[str, Any], Accumulating: Callable[..., Any]) -> dict[str, Any]:
    kind, seed, types = case["before the last micro-batch"], case["seed"], ("float64", "float32")[case["seed"] % 2]
    model, error = networks.model(seed, types=types), ERRORS.get(kind)
    ddp, other = Accumulating(model), Accumulating(networks.model(50, types=types))
    seen: dict[str, Any] = {}

    def micro_batch(where: str) -> None:
        number = len(seen)
        (networks.loss(model, 100 * seed + 10 * dist.get_rank() + number) / 3).backward()
        ddp.finish()
        there = [one.flatten() for one in gradients(model).values() if one is not None]
        seen[f"the gradients after micro-batch {number + 1}, {where}"] = torch.cat([torch.zeros(0), *there])

    def blocks() -> None:
        with (other if kind == "a block of another object" else ddp).no_sync():
            micro_batch(f"in {kind}")
            if kind == "a block in a block":
                with ddp.no_sync():
                    micro_batch("in the inner block")
                micro_batch("behind the inner block")
            if error:
                raise error()

    with kept(model), watched(["all_reduce"]) as wire:
        try:
            if kind != "nothing":
                blocks()
            comes_out = "nothing"
        except (ValueError, KeyboardInterrupt) as caught:
            comes_out = type(caught).__name__
            refuse(error is not type(caught), f"the block raises {comes_out}: {caught}")
        wire.mark()
        micro_batch("after all blocks")
    waits(wire.calls)
    sent = [sum(call["bytes"] for call in wire.calls if call["ready"] == marks) for marks in (0, 1)]
    seen["the bytes that are all-reduced before the last micro-batch, and in it"] = sent
    return seen | {"what comes out of the block": comes_out}
