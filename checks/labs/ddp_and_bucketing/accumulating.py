"""Check of ``Accumulating``: micro-batches in silence, and then the mean of what has added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, watched
from checks.engine.watching import waits
from checks.labs.ddp_and_bucketing import networks
from checks.labs.ddp_and_bucketing.training import LAB, MEANS, gradients, kept

OFF = "before, self.synchronise = self.synchronise, False"
BLOCK = "        try:\n            yield\n        finally:\n            self.synchronise = before\n"
IF = "        if self.synchronise:\n            for"
SUM = "                    dist.all_reduce(parameter.grad)\n"
MEAN = "                    parameter.grad /= dist.get_world_size()\n"
INIT = "        self.model, self.synchronise = model, True\n"
FINISH = "    def finish(self):\n"
OFFICIAL = Reference(LAB, "Accumulating", {
    "inside the block the gradients travel all the same": {OFF: "before = True"},
    "after the block nothing travels any more: switch it on again as the block ends": {BLOCK: "        yield\n"},
    "after an exception in the block nothing travels any more: use try … finally":
        {BLOCK: "        yield\n        self.synchronise = before\n"},
    "after a KeyboardInterrupt in the block nothing travels any more: it is no Exception, use try … finally":
        {BLOCK: "        try:\n            yield\n        except Exception:\n            self.synchronise = before\n"
                "            raise\n        self.synchronise = before\n"},
    "an exception in the block does not come out: use try … finally, or let __exit__ return None":
        {BLOCK: "        with contextlib.suppress(BaseException):\n            yield\n"
                "        self.synchronise = before\n"},
    "as an inner block ends, gradients travel again in the outer one: put back what was there before":
        {"self.synchronise = before": "self.synchronise = True"},
    "in a block inside a block gradients travel: each block switches to the other state":
        {OFF: "self.synchronise = not self.synchronise",
         "self.synchronise = before": "self.synchronise = not self.synchronise"},
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
    "it is divided by the number of micro-batches: the training loop has done that": {
        INIT: INIT + "        self.count = 0\n", FINISH: FINISH + "        self.count += 1\n",
        MEAN: MEAN[:-1] + " * self.count\n            self.count = 0\n"},
    "inside the block what has added up is divided: leave it alone":
        {IF: "        if True:\n            for", SUM: "                    if self.synchronise:\n    " + SUM},
    "inside the block what has added up is thrown away":
        {FINISH: FINISH + "        if not self.synchronise:\n            self.model.zero_grad()\n"},
    "every gradient travels twice": {SUM: SUM + MEAN + SUM},
})  # fmt: skip
ERRORS = {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}
_BEFORE = ("nothing", "a block", "a block in a block", "a block of another object",
           *(f"a block that ends by a {name}" for name in ERRORS))  # fmt: skip
CASES = [{"before the last micro-batch": one, "seed": number} for number, one in enumerate(_BEFORE)]


class Player:
    """What a case does with a model and the learner's object, and what is seen of it."""

    def __init__(self, case: dict[str, Any], Accumulating: Callable[..., Any]) -> None:
        self.kind, self.seed = case["before the last micro-batch"], 100 * case["seed"] + 10 * dist.get_rank()
        self.phases: list[str] = []  # each begins with a mark
        self.found: dict[str, Any] = {}
        types = ("float64", "float32")[case["seed"] % 2]
        self.model = networks.model(case["seed"], types=types)
        self.ddp, self.other = Accumulating(self.model), Accumulating(networks.model(50, types=types))

    def now(self, phase: str) -> None:
        self.phases.append(phase)
        self.seen.mark()

    def micro_batch(self, where: str) -> None:
        about = f"micro-batch {len(self.phases) // 2 + 1}, {where}"
        self.now(about)
        (networks.loss(self.model, self.seed + len(self.phases)) / 3).backward()
        self.ddp.finish()
        self.found |= {f"{about}: the gradient of `{name}`": one for name, one in gradients(self.model).items()}
        self.now(f"after {about}")

    def before_the_last(self) -> None:
        if self.kind == "a block of another object":
            with self.other.no_sync():
                self.micro_batch("in a block of another object")
            self.model.zero_grad()
        elif self.kind.split()[-1] in ERRORS:
            self.found["what comes out of the block"] = self.interrupted(ERRORS[self.kind.split()[-1]]())
            self.model.zero_grad()
        elif self.kind != "nothing":
            with self.ddp.no_sync():
                self.micro_batch("in the block")
                if self.kind == "a block in a block":
                    with self.ddp.no_sync():
                        self.micro_batch("in the inner block")
                self.micro_batch("in the block")

    def interrupted(self, error: BaseException) -> str:
        try:
            with self.ddp.no_sync():
                self.micro_batch("in the block")
                raise error
        except type(error) as caught:
            if caught is not error:
                raise
            return type(error).__name__
        return "nothing"


def play(case: dict[str, Any], Accumulating: Callable[..., Any]) -> dict[str, Any]:
    player = Player(case, Accumulating)
    with kept(player.model), watched(["all_reduce"]) as player.seen:
        player.before_the_last()
        player.micro_batch("after all blocks")
    waits(player.seen.calls)
    for place, phase in enumerate(player.phases):
        sent = sum(one["bytes"] for one in player.seen.calls if one["ready"] == place + 1)
        player.found[f"{phase}: the bytes that are all-reduced"] = sent
    return player.found
