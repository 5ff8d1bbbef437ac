"""Exercise 5: ``train_through_errors(train_step, batches)``, which returns numbers of batches and texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks import plain
from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.gil_and_refcounting import leaks

PRELOAD = leaks.PRELOAD
WHAT_STAYS = "an error stays, and with it its traceback, its frames, and all tensors that they name"


class BrokenBatch(ValueError):
    """A ValueError whose text is none of its arguments."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row

    def __str__(self) -> str:
        return f"row {self.row} is broken\nand so is the batch\n"


ERRORS: tuple[Callable[[int], ValueError], ...] = (
    lambda n: ValueError(f"the loss of batch {n} is nan"),
    lambda n: ValueError("no number", n),
    lambda n: ValueError(),
    lambda n: UnicodeError(f"a label of batch {n} is no text"),
    BrokenBatch,
)


class OtherError(
    KeyError,
    IndexError,
    ZeroDivisionError,
    AssertionError,
    NotImplementedError,
    TypeError,
    TimeoutError,
    ConnectionError,
):
    """Of many kinds at once, and no ValueError: whoever swallows one of them swallows it."""


class AnotherError(MemoryError, AttributeError, ArithmeticError, EOFError, BufferError, ReferenceError, SystemError):
    """Of the kinds that cannot be put together with those."""


OTHERS = {one.__name__: one for one in (OtherError, AnotherError, StopIteration, KeyboardInterrupt, SystemExit)}


def draw(rng: random.Random) -> list[Case]:
    """Broken batches in any places; in the last cases another error, which has to come out."""
    cases = leaks.cases(rng)
    cases[0]["broken"] = sorted(rng.sample(range(2, 26), 11))
    cases[1]["broken"] = [0, *rng.sample(range(1, n := cases[1]["steps"]), n // 2), n - 1]
    cases[2]["broken"] = []
    for name in OTHERS:
        other = leaks.cases(rng)[1] | {"steps": (n := rng.randint(4, 9)), "broken": [1], "error": name}
        cases.append(other | {"error in batch": rng.randint(2, n - 2)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    from checks import inside
    from checks.gil_and_refcounting import training_loops as loops

    if "error" not in case:
        facts["may be alive"] = loops.rehearse(case, lambda one, looks: _train(case, one, [], looks))
    host = loops.Setting(case, on_gpu=False)
    facts["texts"] = _train(case, host, [])
    facts["right"] = host.state()
    one, looks, seen = loops.Setting(case), loops.Looks(), []
    step = _step(case, one, seen, looks)
    with loops.counted(watch.answers["train_through_errors"].function) as counts:
        result = None
        with watch.step("train_through_errors", train_step=None, batches=one.batches) as record:
            try:
                result = watch.answers["train_through_errors"](step, one.batches)
            except inside.Outcome as outcome:
                if "error" not in case or outcome.__cause__ is None or outcome.record["kind"] == "not started":
                    raise
                record["caught"] = facts["came out"] = type(outcome.__cause__).__name__
        if "error" not in case:
            facts["result"] = _plain(result)
        del result
        looks.look()
    facts |= counts | {"alive": looks.found, "after": one.state(), "seen": list(seen)}


def _plain(result: Any) -> Any:
    if not isinstance(result, list):
        return f"a {type(result).__name__}"
    pairs = [isinstance(pair, tuple | list) and len(pair) == 2 for pair in result]
    if not all(pairs):
        return f"a list with a {type(result[pairs.index(False)]).__name__}"
    whole = [plain.number(n, whole=True) for n, _ in result]
    return [(repr(n)[:60] if found is None else found, text if isinstance(text, str) else None)
            for found, (n, text) in zip(whole, result, strict=True)]  # fmt: skip


def _step(case: Case, one: Any, seen: list[int], looks: Any = None) -> Callable[[Any, Any], None]:
    """The ``train_step`` that a learner's loop calls."""
    from torch.nn.functional import mse_loss

    numbers = {id(x): number for number, (x, _) in enumerate(one.batches)}

    def train_step(x: Any, y: Any) -> None:
        if looks:
            looks.look()
        one.optimizer.zero_grad()
        loss = mse_loss(one.model(x), y)
        seen.append(number := numbers.get(id(x), -1))
        if number in case["broken"]:
            raise ERRORS[number % len(ERRORS)](number)
        if number == case.get("error in batch"):
            raise OTHERS[case["error"]]("this batch is not broken: something else is")
        loss.backward()
        one.optimizer.step()

    return train_step


def _train(case: Case, one: Any, seen: list[int], looks: Any = None) -> list[tuple[int, str]]:
    """What the loop has to do."""
    step, errors = _step(case, one, seen, looks), []
    for number, (x, y) in enumerate(one.batches):
        try:
            step(x, y)
        except ValueError as error:
            errors.append((number, str(error)))
        except BaseException:
            break
    return errors


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    (facts,) = world
    if "error" in case and "came out" not in facts:
        words = "only a ValueError means a broken batch; any other error must come out"
        yield Broken("value:0 error", words, "no error comes out", case["error"])
    elif "error" in case and facts["came out"] != case["error"]:
        words = "an error that is no ValueError must come out as it is"
        yield Broken("value:0 error", words, facts["came out"], case["error"])
    if "error" not in case:
        yield from leaks.judge_growth(facts, 1, WHAT_STAYS)
    if facts["seen"] != sorted(set(facts["seen"])):
        words = "each batch is trained on once, in their order, also after a broken one"
        yield Broken("value:0 steps", words, facts["seen"][:12])
    elif "error" in case and len(facts["seen"]) > case["error in batch"] + 1:
        words = "after an error that is no ValueError, no further batch is trained on"
        yield Broken("value:0 steps", words, facts["seen"][-1], case["error in batch"])
    yield from leaks.judge_training(facts, case["steps"], case["type"])
    if "error" not in case:
        yield from _result(facts["result"], facts["texts"])


def _result(result: Any, right: list[tuple[int, str]]) -> Iterator[Broken]:
    if isinstance(result, str):
        yield Broken("value:5 kind", "train_through_errors returns a list of pairs: number and text", result)
        return
    numbers, wanted = [number for number, _ in result], [number for number, _ in right]
    if numbers != wanted:
        counted = wanted and numbers == [number + 1 for number in wanted]
        words = (
            "batches are counted from 0, yours from 1" if counted else "these are not the numbers of the broken batches"
        )
        yield Broken("value:5 numbers", words, numbers[:12], wanted[:12])
        return
    for (number, text), (_, other) in zip(result, right, strict=True):
        if text != other:
            words = f"the text of an error is what str(error) gives; that of batch {number} is another one"
            yield Broken("value:5 text", words, repr(text), repr(other))
            return


CONTRACT = Contract(
    name="gil_and_refcounting.broken_batches",
    rules={
        # (The model hangs on train_step; what becomes of it is compared with the right loop's.)
        "train_through_errors": Rules(allows=("looks:tb_frame",))  # traceback.clear_frames lets go as well
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=tuple((f"value:{n}*", "{}") for n in range(7)),
    figures=leaks.figures,
)
