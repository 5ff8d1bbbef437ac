"""Check of ``train_through_errors``: numbers and texts of broken batches, and no error that is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.functional import mse_loss

from checks.engine import Reference, exercise, refuse
from checks.engine.inside import Outcome
from checks.labs.gil_and_refcounting.leaks import Loop

OFFICIAL = Reference("gil_and_refcounting", "train_through_errors", {
    "batches are counted from 0, yours from 1": {"enumerate(batches)": "enumerate(batches, 1)"},
    "the text of an error is what str(error) gives, not repr(error)": {"str(error)": "repr(error)"},
    "of each error the number is that of its batch, not its place among the errors": {
        "return errors": "return [(n, text) for n, (_, text) in enumerate(errors)]"},
})  # fmt: skip
STAYS = "an error stays, and with it its traceback, its frames, and all tensors that they name"
BROKEN = ("the loss is nan",), ("no number", 4), ()  # what the errors are made with
OTHERS = {"KeyError": KeyError, "RuntimeError": RuntimeError}
CASES = [
    {"steps": 9, "broken batches": [2, 3, 4, 6, 8]},
    {"steps": 7, "broken batches": [0, 1, 4, 6]},
    {"steps": 3, "broken batches": []},
    *({"steps": 5, "broken batches": [1], "in batch 3": name} for name in OTHERS),
]  # fmt: skip


@exercise(OFFICIAL, CASES, title="Errors that hold on", difficulty=2, minutes=15, timeout=150)
def broken_batches(case: dict[str, Any], train_through_errors: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_through_errors(train_step, batches)``, which returns numbers of batches and texts."""
    loop, other = Loop(case["steps"]), case.get("in batch 3")
    numbers, seen = {id(x): number for number, (x, _) in enumerate(loop.batches)}, list[int]()
    batches = {"the batches that train_step gets, each once and in order": seen}

    def train_step(x: Any, y: Any) -> None:
        loop.optimizer.zero_grad()
        loop.look()
        loss = mse_loss(loop.model(x), y)
        seen.append(number := numbers.get(id(x), -1))
        if number in case["broken batches"]:
            raise ValueError(*BROKEN[number % len(BROKEN)])
        if other and number == 3:
            raise OTHERS[other]("this batch is not broken: something else is")
        loss.backward()
        loop.optimizer.step()

    try:
        with loop.watched(STAYS):
            pairs = train_through_errors(train_step, loop.batches)
    except (KeyError, RuntimeError, Outcome):
        if not other:
            raise
        return batches
    fault = "only a ValueError means a broken batch; any other error must come out, at once"
    refuse(other, fault, measured="no error", expected=other)
    return batches | {"the list of pairs, number and text": pairs, "the weights after the training": loop.weights()}
