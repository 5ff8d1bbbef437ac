"""Exercise 2: ``successive_halving(configs, train, eta, first)``: every epoch is counted."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.ray_and_tuning import rungs as laws
from checks.ray_and_tuning.rungs import CRASHED, KINDS, Rung
from checks.ray_and_tuning.searches import not_a_pair
from checks.verdicts import Wrong

MOST_CALLS = 5_000


def draw(rng: random.Random) -> list[Case]:
    cases = [laws.drawn(rng, name) for name in (*KINDS, *rng.choices([*KINDS][1:6], k=5))]
    cases[1]["before"] = "the same search"  # of which nothing may be kept
    for raised in ("ProgramError", rng.choice(("MemoryError", "OSError"))):
        mistake = {"a mistake in": "train", "at call": rng.randint(1, 6), "raise": raised}
        cases.append(laws.drawn(rng, "curves that cross and rise") | mistake)
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    if "before" in case:
        scene({key: value for key, value in case.items() if key != "before"}, watch, facts)
    log: list[Any] = []
    facts["log"] = log
    given = {"configs": [dict(one) for one in case["configs"]], "train": _train(case, log)}
    given |= {"eta": case["eta"], "first": case["first"]}
    if "a mistake in" in case:
        facts["caught"] = watch.attempt("successive_halving", **given)
    else:
        facts["result"] = watch.call("successive_halving", **given)


def _train(case: Case, log: list[Any]) -> Callable[..., Any]:
    """``train``. What it knows is inside a generator, where nobody sees it who does not look at frames."""
    books = _books(case, log)
    next(books)

    def train(config: Any, epochs: Any, checkpoint: Any = None) -> Any:
        found = books.send((config, epochs, checkpoint))
        if isinstance(found, BaseException):
            raise found
        return found

    return train


class OutOfMemory(RuntimeError):
    """As torch has one."""


class ProgramError(ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
    """Of many kinds at once: whoever swallows one of them swallows it."""


RAISED = {one.__name__: one for one in (ProgramError, MemoryError, OSError)}


def _books(case: Case, log: list[Any]) -> Generator[Any, Any, None]:
    trials: list[list[Any]] = []  # of each its configuration, its epochs, its newest checkpoint, whether it has crashed
    found: Any = None
    while True:
        config, epochs, checkpoint = yield found
        if case.get("at call") == len(log) + 1:
            log.append([-1, 0, 0, None])
            found = RAISED[case["raise"]]("a mistake in the program")
            continue
        try:
            found = _training(case, log, trials, config, epochs, checkpoint)
        except (Wrong, OutOfMemory) as error:
            found = error


def _training(case: Case, log: list[Any], trials: list[list[Any]], config: Any, epochs: Any, checkpoint: Any) -> Any:
    if len(log) > MOST_CALLS:
        raise Wrong(f"train was called more than {MOST_CALLS:,} times: does the search end?")
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
        raise Wrong(f"epochs is a whole number of at least 1, not {str(epochs)[:20]}")
    if config not in case["configs"]:
        raise Wrong(f"something is trained that is not in configs: {str(config)[:80]}")
    if checkpoint is None:
        number = len(trials)
        trials.append([dict(config), 0, None, False])
    else:
        number = _trial_of(trials, checkpoint)
    trial = trials[number]
    if trial[0] != config:
        raise Wrong("a configuration was given the checkpoint of another one")
    if trial[2] != checkpoint:
        raise Wrong("an old checkpoint was used: epochs after it are trained twice")
    if type(checkpoint) is dict and trial[2] is not checkpoint:
        raise Wrong("train is given a copy of a checkpoint: hand on what it returned, which may be large, as it is")
    trial[1] += epochs
    loss = laws.loss_of(case, case["configs"].index(config), trial[1])
    log.append([number, case["configs"].index(config), trial[1], None if loss == CRASHED else loss])
    if loss == CRASHED:
        trial[2] = object()  # nothing to go on from
        raise OutOfMemory("out of memory: this trial has failed")
    trial[2] = _checkpoint(case["checkpoints"], number, trial[1], len(log))
    return loss, trial[2]


def _checkpoint(kind: str, number: int, total: int, calls: int) -> Any:
    if kind == "numbers":
        return calls - 1  # the first one is 0
    return {"trial": number, "epochs": total} if kind == "dicts" else f"trial {number} after {total} epochs"


def _trial_of(trials: list[list[Any]], checkpoint: Any) -> int:
    """Of the newest checkpoints, or of an old one."""
    for number, trial in enumerate(trials):
        if trial[2] is not None and type(trial[2]) is type(checkpoint) and trial[2] == checkpoint:
            return number
    raise Wrong("train is given what is no trial's newest checkpoint: go on from the one that its last call returned")


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    facts = world[0]
    if "a mistake in" in case:
        if "caught" in facts and not (facts["caught"] and case["raise"] in facts["caught"]["kinds"]):
            words = f"swallows a {case['raise']} of train: only a RuntimeError means that a trial has failed"
            yield Broken("value:swallowed", f"successive_halving {words}", "nothing came out", case["raise"])
    elif "result" in facts:
        right = laws.rungs_of(case)
        yield from next((found for part in _PARTS if (found := list(part(case, facts, right)))), ())


def _started(case: Case, facts: Facts, right: list[Rung]) -> Iterator[Broken]:
    """Each configuration has one training, whatever it is like."""
    begun = Counter(place for place, _ in {(place, number) for number, place, *_ in facts["log"]})
    wanted = Counter(map(case["configs"].index, case["configs"]))
    figures = f"{sum(begun.values())} begun", f"{sum(wanted.values())}"
    if any(begun[place] > number for place, number in wanted.items()):
        crashed = {place for _, place, _, loss in facts["log"] if loss is None}
        if {place for place, number in wanted.items() if begun[place] > number} <= crashed:
            words = "a trial that has crashed is started again: it has failed, and stays out"
            yield Broken("value:again", words, *figures)
            return
        words = "trials that go on start anew: give train the checkpoint of what they have learned so far"
        epochs = sum(_epochs(facts).values())
        yield Broken("value:anew", words, f"{epochs} epochs", f"{laws.budget(right)} epochs")
    elif begun != wanted:
        words = "every configuration is trained in the first rung, also one that is there twice"
        yield Broken("value:never", words, *figures)


def _epochs(facts: Facts) -> dict[int, int]:
    """How many each training has had."""
    return {number: total for number, _, total, _ in facts["log"]}


def _found(case: Case, facts: Facts) -> dict[int, list[int]]:
    """By place of the first configuration of its kind: epochs of its trainings, ascending."""
    found: dict[int, list[int]] = {}
    place_of = {number: place for number, place, *_ in facts["log"]}
    for number, total in _epochs(facts).items():
        found.setdefault(place_of[number], []).append(total)
    return {place: sorted(totals) for place, totals in found.items()}


def _wanted(case: Case, rungs: list[Rung]) -> dict[int, list[int]]:
    wanted: dict[int, list[int]] = {}
    for place, config in enumerate(case["configs"]):
        last = max(rung.epochs for rung in rungs if place in rung.trials)
        wanted.setdefault(case["configs"].index(config), []).append(last)
    return {place: sorted(totals) for place, totals in wanted.items()}


def _same(case: Case, found: dict[int, list[int]], wanted: dict[int, list[int]]) -> bool:
    """Whether these are the rungs. A trial that fails in the middle of a rung may stop there."""
    for place, totals in wanted.items():
        fails_at = case["curves"][place][4]
        for got, total in zip(found[place], totals, strict=True):
            if got != total and not (total >= fails_at and fails_at <= got <= total):
                return False
    return True


def _trained(case: Case, facts: Facts, right: list[Rung]) -> Iterator[Broken]:
    found, levels = _found(case, facts), [rung.epochs for rung in right]
    if _same(case, found, _wanted(case, right)):
        return
    flat = sorted(total for totals in found.values() for total in totals)
    sizes = [sum(total >= epochs for total in flat) for epochs in levels]
    wanted = [len(rung.trials) for rung in right]
    usual = [case["first"] * case["eta"] ** k for k in range(20)]
    figures = f"rungs of {_listed(sizes)} trials", _listed(wanted)
    ends = f"trials end after {_listed(sorted(set(flat)))} epochs", _listed(levels)
    for keep_or_rank, ways in (("keep", laws.SIZES), ("ranking", laws.CHOICES)):
        alike = [words for words, way in ways.items() if _same_rungs(case, found, **{keep_or_rank: way})]
        if alike:
            words = f"not the right trials go on: is it that {', or that '.join(alike[:3])}?"
            figures = figures if keep_or_rank == "keep" else _went(case, found, right)
            yield Broken(f"value:{keep_or_rank}", words, *figures)
            return
    on_top = [case["first"] * sum(case["eta"] ** k for k in range(n + 1)) for n in range(len(right) + 1)]
    beyond = set(flat) - set(levels)
    if flat[0] < levels[0] and not any(curve[4] < 10**9 for curve in case["curves"]):
        yield Broken("value:first", f"in the first rung each trial gets {case['first']} epochs", *ends)
    elif beyond and set(flat) <= set(on_top):
        words = "a rung says how many epochs a trial has had in all, and yours gets so many more"
        yield Broken("value:on top", f"{words}: train the difference only", *ends)
    elif _failed_on(case, found):
        words = "a trial that has failed goes on: nan is neither less nor greater than a number, and sorting leaves it"
        yield Broken("value:failed", words, *figures)
    elif sizes == wanted and beyond == {usual[len(right)]} and any(one[2] == levels[-1] for one in facts["log"]):
        words = "the search ends when a rung with one trial is trained; yours trains it further"
        yield Broken("value:end", words, *ends)
    elif sizes[:-1] == wanted[:-1] and not sizes[-1]:
        yield Broken("value:last", "the last rung is missing: the trial that is left is trained there too", *figures)
    elif (beyond - set(usual) or (beyond and sizes == wanted)) and not any(
        curve[4] < 10**9 for curve in case["curves"]
    ):
        yield Broken("value:levels", f"rungs are at {case['first']} · {case['eta']}ᵏ epochs", *ends)
    elif sizes != wanted:
        yield Broken("value:sizes", "of the n trials of a rung n // eta go on, and at least one", *figures)
    else:
        yield Broken("value:choice", "not the trials with the lowest losses go on", *_went(case, found, right))


def _same_rungs(case: Case, found: dict[int, list[int]], **way: Any) -> bool:
    return _same(case, found, _wanted(case, laws.rungs_of(case, **way)))


def _failed_on(case: Case, found: dict[int, list[int]]) -> bool:
    levels = [case["first"] * case["eta"] ** k for k in range(20)]
    ends = {place: next(level for level in levels if level >= case["curves"][place][4]) for place in found
            if case["curves"][place][4] < 10**9}  # fmt: skip
    return any(total > ends[place] for place in ends for total in found[place])


def _went(case: Case, found: dict[int, list[int]], right: list[Rung]) -> tuple[str, str]:
    """The losses of those that go on, in the first rung in which others should have."""
    for rung, following in pairwise(right):
        went = sorted(place for place, totals in found.items() for total in totals if total >= following.epochs)
        should = sorted(case["configs"].index(case["configs"][place]) for place in following.trials)
        if went != should:
            told = [", ".join(f"number {p} ({_short(laws.loss_of(case, p, rung.epochs))})" for p in some[:4])
                    for some in (went, should)]  # fmt: skip
            return f"after {rung.epochs} epochs {told[0]}", told[1]
    return "", ""


def _short(loss: float | str) -> str:
    return f"{loss:.4g}" if isinstance(loss, float | int) else loss


def _result(case: Case, facts: Facts, right: list[Rung]) -> Iterator[Broken]:
    if words := not_a_pair(facts["result"]):
        yield Broken("value:pair", words, str(facts["result"])[:100])
        return
    config, loss = facts["result"]
    (winner,) = right[-1].trials
    expected = f"{case['configs'][winner]}, {right[-1].losses[winner]:.8g}"
    if config != case["configs"][winner]:
        words = "the configuration that is left in the last rung is to be returned"
        yield Broken("value:winner", words, f"{config}, {loss:.8g}", expected)
    elif loss != right[-1].losses[winner] or math.isnan(loss):
        earlier = [rung.losses[winner] for rung in right[:-1]]
        others = [found for *_, found in facts["log"]]
        what = "one of another trial" if loss in others else "one that train never returned"
        what = "one of an earlier rung" if loss in earlier else what
        yield Broken("value:loss", f"the loss is that after the last rung, not {what}", f"{loss:.8g}", expected)


_PARTS = (_started, _trained, _result)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, (facts,) = played[0]
    rungs = laws.rungs_of(case)
    return {
        "searches": len(played),
        "rungs of the first": ", ".join(f"{len(rung.trials)} to {rung.epochs}" for rung in rungs),
        "its budget": f"{sum(_epochs(facts).values())} epochs instead of {len(case['configs']) * rungs[-1].epochs}",
    }


CONTRACT = Contract(
    name="ray_and_tuning.halving_by_hand",
    rules={"successive_halving": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    figures=figures,
)  # fmt: skip
