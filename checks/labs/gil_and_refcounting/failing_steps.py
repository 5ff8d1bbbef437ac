"""Check of ``train_through_errors``: numbers and texts of broken batches, and no error that is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.functional import mse_loss

from checks.engine import Reference, refuse
from checks.engine.inside import Outcome
from checks.engine.plain import kind_of, number
from checks.labs.gil_and_refcounting import leaks

OFFICIAL = Reference("gil_and_refcounting", "train_through_errors", {
    "batches are counted from 0, yours from 1": {"enumerate(batches)": "enumerate(batches, 1)"},
    "the text of an error is what str(error) gives, not repr(error)": {"str(error)": "repr(error)"},
    "of each error the number is that of its batch, not its place among the errors": {
        "return errors": "return [(n, text) for n, (_, text) in enumerate(errors)]"},
    "the list has every broken batch, not the last one only": {"errors.append((number, str(error)))":
        "errors[:] = [(number, str(error))]"},
})  # fmt: skip
STAYS = "an error stays, and with it its traceback, its frames, and all tensors that they name"


class BrokenBatch(ValueError):
    """A ValueError whose text is none of its arguments."""

    def __str__(self) -> str:
        return f"row {self.args[0]} is broken\nand so is the batch"


class OtherError(KeyError, IndexError, ZeroDivisionError, NotImplementedError, TypeError, AssertionError, OSError):
    """Of many kinds at once, and no ValueError."""


BROKEN = (
    ValueError("the loss is nan"),
    BrokenBatch(3),
    ValueError("no number", 4),
    ValueError(),
    UnicodeError("a label"),
)
OTHERS = {one.__name__: one for one in (OtherError, KeyboardInterrupt)}
CASES = [
    {"steps": 9, "broken batches": [2, 3, 4, 6, 8]},
    {"steps": 7, "broken batches": [0, 1, 4, 6]},
    {"steps": 3, "broken batches": []},
    *({"steps": 5, "broken batches": [1], "in batch 3": name} for name in OTHERS),
]  # fmt: skip


def play(case: dict[str, Any], train_through_errors: Callable[..., Any]) -> dict[str, Any]:
    loop, other, came_out = leaks.Loop(case | {"optimizer": "momentum"}), case.get("in batch 3"), None
    numbers, seen = {id(x): number for number, (x, _) in enumerate(loop.batches)}, list[int]()

    def train_step(x: Any, y: Any) -> None:
        loop.look()
        loop.optimizer.zero_grad()
        loss = mse_loss(loop.model(x), y)
        seen.append(number := numbers.get(id(x), -1))
        if number in case["broken batches"]:
            raise type(one := BROKEN[number % len(BROKEN)])(*one.args)
        if other and number == 3:
            raise OTHERS[other]("this batch is not broken: something else is")
        loss.backward()
        loop.optimizer.step()

    with loop.watched_for(STAYS) if not other else leaks.asleep():
        try:
            result = train_through_errors(train_step, loop.batches)
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, Outcome) else error
            if not other or type(cause) is not OTHERS[other]:
                raise
            result, came_out = [], other
        kind, pairs = kind_of(result), _pairs(result)
        del result
    words = "only a ValueError means a broken batch; any other error must come out, at once"
    refuse(other and (not came_out or len(seen) > 4), words, measured=came_out or "no error", expected=other)
    words = "each batch is trained on once, in their order, also after a broken one"
    refuse(seen != sorted(set(seen)), words, measured=seen)
    refuse(pairs is None, "train_through_errors returns a list of pairs: number and text", measured=kind)
    return {**loop.trained(), "the batches": seen, "the list": pairs}


def _pairs(result: Any) -> Any:
    fine = isinstance(result, list) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in result)
    return [[number(n, whole=True), text] for n, text in result] if fine else None
