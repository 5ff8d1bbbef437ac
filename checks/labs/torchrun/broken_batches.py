"""Check of ``train_epoch``: broken batches on any rank, and mistakes of the program, which have to come out."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, leaves, refuse, watched
from checks.engine.inside import Outcome
from checks.engine.watching import explained

REDUCE, CAUGHT = "        dist.all_reduce(with_count)\n", "        except ValueError:\n            pass"
UPDATE = "        if with_count[-1] > 0:\n            update(with_count[:-1] / with_count[-1])"
IF, PASS, LET = (
    "if with_count[-1] > 0:",
    "            pass  # zeros take part",
    "let it come out, so that torchrun sees it",
)
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
    "a broken batch's gradient is that of the step before: begin each step with zeros":
        {"    for batch in batches:\n        with_count = torch.zeros(features + 1)\n":
         "    with_count = torch.zeros(features + 1)\n    for batch in batches:\n        with_count[-1] = 0\n"},
    f"a KeyError of gradient is taken for a broken batch: {LET}": {CAUGHT: CAUGHT.replace("ValueError", "Exception")},
    f"a ValueError of update is swallowed: {LET}":
        {UPDATE: f"        try:\n            {IF}\n                update(with_count[:-1] / with_count[-1])\n"
                 "        except ValueError:\n            pass"},
})  # fmt: skip
STEPS = 6
ONES, MORE = [[0], [], [1], [2], [], []], [[], [1, 2], [0, 1, 2, 3], [0], [1], []]
CASES: list[dict[str, Any]] = [
    {"features": 3}, {"features": 3, "broken": ONES}, {"features": 1, "broken": MORE},
    {"features": 4, "broken": [[0, 1, 2, 3], [1], [], [], [2], []], "a batch raises": "UnicodeDecodeError"},
    {"features": 2, "broken": [[], [1], [], [], [], []]},
    *({"features": 2, "a mistake": f"{one} in gradient"} for one in ("KeyError", "TypeError", "RuntimeError")),
    {"features": 2, "a mistake": "ValueError in update"},
]  # fmt: skip
"""`broken`: for each step, the ranks whose batch is broken."""


def _gradient(case: dict[str, Any], rank: int, step: int) -> torch.Tensor:
    """All zeros now and then."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(case["features"], generator=generator) * float((rank + step) % 4 > 0)


def play(case: dict[str, Any], train_epoch: Callable[..., Any]) -> dict[str, Any]:
    rank, began, updated, means = dist.get_rank(), [], [], []
    mistake, broken = case.get("a mistake", ""), case.get("broken", [[]] * STEPS)
    batches = [f"batch {step}" for step in range(STEPS)]

    def gradient(batch: str) -> torch.Tensor:
        step = batches.index(batch)
        began.append(step)
        if "gradient" in mistake and step == 3:
            raise getattr(builtins, mistake.split()[0])("a mistake in the program")
        if rank in broken[step]:
            b"\xff".decode() if "a batch raises" in case else int("broken")  # both raise
        return _gradient(case, rank, step)

    def update(mean: Any) -> None:
        words = "gradient(batch) and update(mean) are not called in turn: once each, step by step"
        refuse(not began or began[-1] in updated, words)
        if "update" in mistake and began[-1] == 3:
            raise ValueError("a mistake in the program")
        updated.append(began[-1])
        means.append(mean.clone())

    words = "A rank with a broken batch still takes part in the collectives of its step"
    with explained(words), leaves(batches=batches), watched() as seen:
        raised = _raised(train_epoch, batches, gradient, case["features"], update)
    if not mistake:
        words = "gradient(batch) is not called once for each batch, in their order"
        refuse(began != [*range(STEPS)] and updated, words, measured=began, expected=[*range(STEPS)])
        why = "put the number of good batches behind the gradient, and it is added up along with it"
        words = f"there are more than 2 collectives a step: {why}"
        refuse(len(seen.calls) > 2 * STEPS, words, measured=len(seen.calls), expected=f"at most {2 * STEPS}")
        largest, most = max([call["bytes"] for call in seen.calls], default=0), 4 * case["features"] + 1_000
        words = f"a collective is given more bytes than a gradient needs: {why}"
        refuse(largest > most, words, measured=largest, expected=f"at most {most}")
    return {"the exception that comes out": raised, "the steps with an update": updated, "the updates": means}


def _raised(function: Callable[..., Any], *arguments: Any) -> str:
    """The kind of exception that a learner's function lets out; what the check itself raises ends the case."""
    try:
        function(*arguments)
    except Outcome as outcome:
        if outcome.record["kind"] == "not started" or not isinstance(outcome.__cause__, Exception):
            raise
        return type(outcome.__cause__).__name__
    except Exception as error:  # the official solution's
        return type(error).__name__
    return "none"
