"""Check of ``train_epoch``: broken batches on any rank, and mistakes of the program, which have to come out."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, watched
from checks.engine.inside import Outcome
from checks.engine.watching import at_most, explained

REDUCE, CAUGHT = "        dist.all_reduce(with_count)\n", "        except ValueError:\n            pass"
IF, PASS = "if with_count[-1] > 0:", "            pass  # zeros take part"
OFFICIAL = Reference("torchrun", "train_epoch", {
    "a broken batch counts as a gradient of 0: divide by the number of good batches, not of ranks":
        {"/ with_count[-1])": "/ dist.get_world_size())"},
    "an update is the sum of the good gradients, not their mean": {"/ with_count[-1])": ")"},
    "an update is this rank's gradient alone: nothing is added up over the ranks":
        {REDUCE: "        dist.all_reduce(with_count.clone())\n"},
    "it updates in a step in which no rank has a good batch, with 0 / 0": {IF: "if True:"},
    "a rank does not update where its own batch is broken: its weights then differ from the others'":
        {PASS: "            good = False  #", "with_count = torch.zeros(features + 1)\n": "with_count = torch.zeros("
         "features + 1)\n        good = True\n", IF: "if with_count[-1] > 0 and good:"},
    "no rank updates where one has a broken batch: the good batches are thrown away":
        {REDUCE: "        all_good = with_count[-1:].clone()\n        dist.all_reduce(all_good, dist.ReduceOp.MIN)\n"
         + REDUCE, IF: "if all_good > 0:"},
    "a broken batch's rank leaves the all-reduce out: its next one meets another step of the other ranks":
        {PASS: "            continue"},
    "a KeyError of gradient is taken for a broken batch: let it come out, so that torchrun sees it":
        {CAUGHT: CAUGHT.replace("ValueError", "Exception")},
})  # fmt: skip
STEPS = 6
ONES, MORE = [[0], [], [1], [2], [], []], [[], [1, 2], [0, 1, 2, 3], [0], [1], []]
CASES: list[dict[str, Any]] = [
    {"features": 3}, {"features": 3, "broken": ONES}, {"features": 1, "broken": MORE},
    {"features": 4, "broken": [[0, 1, 2, 3], [1], [], [], [2], []], "a batch raises": "UnicodeDecodeError"},
    {"features": 2, "broken": [[], [1], [], [], [], []]},
    *({"features": 2, "a mistake": f"{kind} in gradient"} for kind in ("KeyError", "TypeError", "RuntimeError")),
    {"features": 2, "a mistake": "ValueError in update"},
]  # fmt: skip
"""`broken`: for each step, the ranks whose batch is broken."""


@exercise(OFFICIAL, CASES, title="Broken files", difficulty=2, minutes=20, ranks=(3, 4, 1))
def swallowed(case: dict[str, Any], train_epoch: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_epoch(batches, gradient, features, update)``, with broken batches and with a broken program."""
    rank, features, broken = dist.get_rank(), case["features"], case.get("broken", [[]] * STEPS)
    kind, _, place = case.get("a mistake", "Exception").partition(" in ")
    mistake, comes_out = getattr(builtins, kind)("a mistake in the program"), False
    calls, means = [], []

    def gradient(batch: int) -> torch.Tensor:
        calls.append(f"gradient({batch})")
        if place == "gradient" and batch == 3:
            raise mistake
        if rank in broken[batch]:
            b"\xff".decode() if "a batch raises" in case else int("broken")  # both raise
        generator = torch.Generator().manual_seed(100 * rank + batch)
        return torch.randn(features, generator=generator) * float((rank + batch) % 4 > 0)  # all zeros now and then

    def update(mean: torch.Tensor) -> None:
        calls.append("update(mean)")
        if place == "update" and calls[-2] == "gradient(3)":
            raise mistake
        means.append(mean.clone())

    words = "A rank with a broken batch still takes part in the collectives of its step"
    with explained(words), watched() as seen:
        try:
            train_epoch(list(range(STEPS)), gradient, features, update)
        except (Outcome, Exception) as error:
            comes_out = mistake in (error, error.__cause__)
            if not comes_out:
                raise
    why = "put the number of good batches behind the gradient, and it is added up along with it"
    at_most(seen.calls, 2 * STEPS, 4 * features + 1_000, why)
    return {"whether the mistake comes out": comes_out, "the calls": calls, "the updates": means}
