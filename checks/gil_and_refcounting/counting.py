"""Exercises 1 and 2: ``predictions()`` and ``added_references(situation)``."""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.gil_and_refcounting import situations
from checks.plain import number

COLLECTOR = "the cycle collector"


@contextlib.contextmanager
def collector_asleep() -> Iterator[list[str]]:
    """In the ``with`` block it runs only where somebody asks for it, and that is noted."""
    import gc

    asked: list[str] = []

    def note(phase: str, _: Any) -> None:
        if phase == "start":
            asked.append(COLLECTOR)

    kept = gc.get_threshold()
    gc.collect()
    gc.freeze()  # who looks at all objects sees those that are made from here on: hundreds, not 300,000
    gc.set_threshold(0)
    gc.callbacks.append(note)
    try:
        yield asked
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*kept)
        gc.unfreeze()


# --- 1: predict ------------------------------------------------------------------------------------------------


def draw_predictions(rng: random.Random) -> list[Case]:
    return [{"ranks": 1, "seed": rng.getrandbits(30)}]


def ask(case: Case, watch: Any, facts: Facts) -> None:
    predicted = watch.call("predictions")
    facts["kind"] = type(predicted).__name__
    if isinstance(predicted, dict):
        facts["predicted"] = {key if isinstance(key, str) else repr(key): value for key, value in predicted.items()}
        facts["kinds"] = {name: type(value).__name__ for name, value in facts["predicted"].items()}
        facts["predicted"] = {name: number(value, whole=True) for name, value in facts["predicted"].items()}
    with collector_asleep():
        for function in situations.SITUATIONS:
            situations.added(function)  # what is imported or cached on first use should not count
        facts["truth"] = {function.__name__: situations.added(function) for function in situations.SITUATIONS}


def judge_predictions(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first thing that is not as it has to be."""
    (facts,) = world
    truth, predicted, kinds = facts["truth"], facts.get("predicted"), facts.get("kinds", {})
    if predicted is None:
        yield Broken("returns:", "predictions returns a dict from names of functions to numbers", f"a {facts['kind']}")
    elif strange := [name for name in predicted if name not in truth]:
        words = f"there is no function {strange[0][:60]!r}: use the functions' names as keys, as text"
        yield Broken("returns:", words)
    elif missing := [name for name in truth if name not in predicted]:
        yield Broken("returns:", f"{missing[0]} has no prediction", len(predicted), len(truth))
    elif no_number := [name for name in truth if predicted[name] is None]:
        yield Broken("returns:", f"{no_number[0]} needs a whole number", f"a {kinds[no_number[0]]}")
    elif all(predicted[name] == right + 1 for name, right in truth.items()):
        words = "every number is one too large: only what the function adds counts, not the name that was there"
        yield Broken("value:", words)
    elif wrong := [name for name, right in truth.items() if predicted[name] != right]:
        why = next(why for function, why in situations.SITUATIONS.items() if function.__name__ == wrong[0])
        words = f"{len(truth) - len(wrong)} of {len(truth)} are right. {wrong[0]} adds {truth[wrong[0]]}, not "
        yield Broken("value:", f"{words}{predicted[wrong[0]]}: {why}")


PREDICT = Contract(
    name="gil_and_refcounting.predict",
    rules={"predictions": Rules()},
    draw=draw_predictions,
    scene=ask,
    judge=judge_predictions,
    figures=lambda played: {"predictions": len(played[0][1][0]["truth"]), "measured in this Python": "the same"},
)


# --- 2: measure ------------------------------------------------------------------------------------------------

COUNTS = 24  # situations that are made up, beside those of exercise 1


def draw(rng: random.Random) -> list[Case]:
    parts = [[(kind, rng.randint(1, 5)) for kind in rng.sample(situations.KINDS, rng.randint(0, 4))]
             for _ in range(COUNTS - 5)]  # fmt: skip
    parts += [[(kind, rng.randint(2, 9))] for kind in (*rng.sample(sorted(situations.RETURNED), 2), situations.IN_C)]
    parts += [[(situations.ELSEWHERE, rng.randint(300, 70_000))], [(situations.IN_A_CYCLE, rng.randint(2, 9))]]
    return [{"ranks": 1, "parts": parts, "seed": rng.getrandbits(30)}]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    former: list[Any] = []  # what situations were given, if it is still there
    facts["measured"], facts["seen"] = [], []
    made = [situations.made_of(parts, []) for parts in case["parts"]]
    with collector_asleep() as asked:
        for situation in (*situations.SITUATIONS, *made):
            situations.added(situation)  # what is imported or cached on first use
            seen: list[str] = []

            def noting(*given: Any, situation: Any = situation, seen: list[Any] = seen) -> Any:
                box = list(given)
                del given
                if not isinstance(box[0], torch.Tensor):
                    seen.append(f"a {type(box[0]).__name__}")
                else:
                    seen.append(
                        "a tensor of a former call" if any(one() is box[0] for one in former) else "a new tensor"
                    )
                    former.append(weakref.ref(box[0]))
                return situation(
                    box.pop()
                )  # an error that is kept keeps this frame too, which must not hold the tensor

            asked.clear()
            result = watch.call("added_references", situation=noting)
            found = number(result, whole=True)
            facts["measured"].append(f"a {type(result).__name__}" if found is None else found)
            facts["seen"].append({"with": list(seen), "collector": len(asked)})
            facts["seen"][-1]["left"] = any(one() is not None for one in former[-1:])
            del result
    with collector_asleep():
        facts["truth"] = [situations.added(one) for one in situations.SITUATIONS]


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    (facts,) = world
    named = [one.__name__ for one in situations.SITUATIONS]
    names = [*named, *(_words(parts) for parts in case["parts"])]
    right = [*facts.get("truth", []), *(situations.counted(parts) for parts in case["parts"])]
    for name, seen in zip(names, facts["seen"], strict=False):
        if seen["with"] != ["a new tensor"]:
            yield Broken("value:0 calls", _calls(seen["with"]), f"{name}: {len(seen['with'])} calls", "1 call")
            return
    if len(facts["measured"]) < len(names) or len(right) < len(names):
        return
    different = [place for place, value in enumerate(facts["measured"]) if value != right[place]]
    if not different:
        stays = [*(one in situations.STAYS for one in situations.SITUATIONS), *map(situations.stays, case["parts"])]
        for name, seen, excused in zip(names, facts["seen"], stays, strict=True):
            if seen["left"] and not excused:
                words = (
                    "the tensor is still there when added_references has returned: a name outside of the function, or"
                )
                yield Broken(
                    "value:3 left", f"{words} a cycle, holds it, or what the situation has returned. See {name}"
                )
                return
        return
    got, place = facts["measured"], different[0]
    figures = (f"{got[place]} in {names[place]}", right[place])
    if text := next((one for one in got if isinstance(one, str)), ""):
        yield Broken("value:1 kind", "added_references returns one whole number", text)
        return
    drawn, parts = got[len(named) :], case["parts"]
    if drawn == [situations.counted(one, dropped=True) for one in parts]:
        words = "what the situation returns must stay alive until you have counted: give it a name"
    elif drawn == [situations.counted(one, collected=True) for one in parts] and facts["seen"][0]["collector"]:
        words = "the cycle collector runs before you count, and takes away what was to be counted"
    elif not any(got):
        words = "every situation seems to add nothing: count once before, and once after the call, the same tensor"
    elif len({one - other for one, other in zip(got, right, strict=True)}) == 1 and got[0] > right[0] + 1:
        words = "this is the whole count, with the references that were there before: count before and after"
    elif len({one - other for one, other in zip(got, right, strict=True)}) == 1:
        words = "every number is off by the same: count the same tensor, in the same way, before and after. "
        words += "sys.getrefcount's own argument counts too"
    else:
        words = f"{len(different)} of {len(right)} situations are measured wrong"
    yield Broken("value:2 counts", words, *figures)


def _calls(seen: list[str]) -> str:
    if not seen:
        return "the situation is never called: there is nothing to measure"
    if len(seen) > 1:
        return "the situation runs more than once, and what the first call leaves behind counts too, or is missing"
    return f"the situation is called with {seen[0]}: make a new tensor in each call of added_references"


def _words(parts: situations.Parts) -> str:
    return " and ".join(f"{times} {kind}" for kind, times in parts) or "a situation that holds nothing"


MEASURE = Contract(
    name="gil_and_refcounting.measure",
    rules={
        # (ctypes reads the count from the object, as the lecture does.)
        "added_references": Rules(changes=("around.torch's random numbers",), allows=("looks:ctypes.*",))
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "looks:gc.*",
            "gc lists who holds the tensor, each holder once and only those that it knows. sys.getrefcount counts "
            "references",
        ),
        ("value:*", "{}"),
    ),
    figures=lambda played: {"situations": len(played[0][1][0]["measured"]), "of them in no notebook": COUNTS},
)
