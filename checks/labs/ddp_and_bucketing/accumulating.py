"""Check of ``Accumulating``: micro-batches in silence, and then the mean of what has added up."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, watched
from checks.engine.watching import waits
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, Network

BLOCK = "        try:\n            yield\n        finally:\n            self.synchronise = before\n"
OFFICIAL = Reference(LAB, "Accumulating", {
    "inside the block the gradients travel all the same": {"= self.synchronise, False": "= True, True"},
    "after the block nothing travels any more: switch it on again as the block ends": {BLOCK: "        yield\n"},
    "after an exception in the block nothing travels any more: use try … finally":
        {BLOCK: "        yield\n        self.synchronise = before\n"},
    "an exception in the block does not come out: use try … finally, or let __exit__ return None":
        {"        finally:\n": "        except BaseException:\n            pass\n        finally:\n"},
    "as an inner block ends, gradients travel again in the outer one: put back what was there before":
        {"self.synchronise = before": "self.synchronise = True"},
    "a block of another object counts as this one's: keep the flag in the object":
        {"self.synchronise": "Accumulating.synchronise"},
    "as the block ends, what has added up travels: only finish() outside of a block sends it":
        {BLOCK: BLOCK + "        self.finish()\n"},
    **MEANS,
})  # fmt: skip
ERRORS = {f"a block that ends by a {error.__name__}": error for error in (ValueError, KeyboardInterrupt)}
BEFORE = "nothing", "a block", "a block in a block", "a block of another object", *ERRORS
CASES = [{"before the last micro-batch": kind, "seed": number} for number, kind in enumerate(BEFORE)]


@exercise(OFFICIAL, CASES, title="no_sync", difficulty=2, minutes=20, ranks=(3, 2))
def no_sync(case: dict[str, Any], Accumulating: Any) -> dict[str, Any]:
    """Judge the class ``Accumulating(model)`` with its methods ``finish()`` and ``no_sync()``."""
    kind, seed, types = case["before the last micro-batch"], case["seed"], ("float64", "float32")[case["seed"] % 2]
    model, error = Network(seed, types=types), ERRORS.get(kind, ())
    ddp, other = Accumulating(model), Accumulating(Network(50, types=types))
    seen: dict[str, Any] = {}

    def micro_batch(where: str) -> None:
        (model.loss(100 * seed + 10 * dist.get_rank() + len(seen)) / 3).backward()
        ddp.finish()
        seen.update(model.gradients(f"after a micro-batch {where}"))

    comes_out = "nothing"
    with model.kept(), watched(["all_reduce"]) as model.wire:
        try:
            if kind != "nothing":
                with (other if kind == "a block of another object" else ddp).no_sync():
                    micro_batch(f"in {kind}")
                    if kind == "a block in a block":
                        with ddp.no_sync():
                            micro_batch("in the inner block")
                        micro_batch("behind the inner block")
                    if error:
                        raise error()
        except error as caught:
            comes_out = type(caught).__name__
    before = model.wire
    with model.kept(), watched(["all_reduce"]) as model.wire:
        micro_batch("after all blocks")
    waits([*before.calls, *model.wire.calls])
    seen["the bytes that are all-reduced before the last micro-batch, and in it"] = before.sent(), model.wire.sent()
    return seen | {"what comes out of the block": comes_out}
