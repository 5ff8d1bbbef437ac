"""Exercise 6: ``run_parallel(function, items, workers)``: each item once, by processes that work together."""

from __future__ import annotations

import collections
import math
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules

PRELOAD = (
    "checks.gil_and_refcounting.process_items",
    "psutil",
    "concurrent.futures.process",
    "multiprocessing.pool",
)
LEFT = "processes are left behind when run_parallel has returned: end them, and wait for them"
ENDS = 60  # seconds in which a call comes to its end, however busy the machine is
OF_MANY = "an error of many kinds"
ERRORS = {one.__name__: one for one in (ValueError, KeyError, ZeroDivisionError, RuntimeError, OSError)}
NOTHING = (None, 0, False, "", (), {}, ValueError("a result"))  # results that look like none, or like a failure
ANYTHING = (3, 3, [1, 2], None, "a", {"b": [3]}, (), 2.5, [1, 2])  # some are equal, some have no hash


def draw(rng: random.Random) -> list[Case]:
    """Shares of 6, 6, 6 and 5, and of 1 or 2; items and results of any kind, too few and none; items that fail."""
    cases: list[Case] = [{"items": 23, "workers": 4}, {"items": rng.choice((5, 9, 10)), "workers": 5}]
    cases += [{"items": n, "workers": w, "kind": "anything"} for n, w in ((rng.randint(4, 9), 2), (1, 2), (0, 1))]
    cases.append({"items": len(NOTHING), "workers": 2, "kind": "results as they are"})
    for error in (rng.choice(sorted(ERRORS)), OF_MANY):
        cases.append({"items": (n := rng.randint(3, 7)), "workers": 2, "error": error, "in item": rng.randrange(n)})
    return [{"ranks": 1} | case | {"seed": rng.getrandbits(30)} for case in cases]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import multiprocessing
    import tempfile

    import torch

    from checks.gil_and_refcounting import process_items

    torch.set_num_threads(process_items.THREADS)
    os.environ["OMP_NUM_THREADS"] = str(process_items.THREADS)  # what spawned workers begin with
    process_items.helpers_can_be_sent(watch.answers["run_parallel"])
    dice = random.Random(case["seed"])
    with tempfile.TemporaryDirectory(prefix="items-", dir=os.path.dirname(os.getcwd())) as folder:
        multiprocessing.current_process()._config["tempdir"] = folder
        items, function = _given(case, dice, folder)
        with process_items.ended_when_still(ENDS, looks=not isinstance(function, process_items.InStep)):
            given = {"function": function, "items": list(items), "workers": case["workers"]}
            if "error" in case:
                facts["came out"] = watch.attempt("run_parallel", **given) is not None
            else:
                facts["results"] = _plain(watch.call("run_parallel", **given))
        facts |= {"items": [repr(item) for item in items], "caller": os.getpid(), "left": process_items.still_there()}
        process_items.end_children()
        if isinstance(function, process_items.InStep):
            facts |= function.seen() | {"right": [function.result(item) for item in items]}
        if facts["left"]:  # they would disturb the next case
            watch.wire.stop("left", LEFT, everywhere=True)


def _given(case: Case, dice: random.Random, folder: str) -> tuple[list[Any], Any]:
    from checks.gil_and_refcounting import process_items

    if case.get("kind") == "results as they are":
        return dice.sample(NOTHING, len(NOTHING)), process_items.AsItIs()
    if case.get("kind"):
        few = [*ANYTHING[:3], *dice.sample(ANYTHING[3:], max(0, case["items"] - 3))][: case["items"]]
        return dice.sample(few, len(few)), process_items.Large()
    items = dice.sample(range(100), case["items"])
    if "error" in case:
        return items, process_items.Failing(
            items[case["in item"]], ERRORS.get(case["error"], process_items.OfManyKinds)
        )
    return items, process_items.InStep(folder, items, case["workers"])


def _plain(result: Any) -> Any:
    if not isinstance(result, list):
        return f"a {type(result).__name__}"
    return [
        one[:2] if isinstance(one, list) and len(one) == 3 else one if type(one) is float else repr(one)[:60]
        for one in result
    ]


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    (facts,) = world
    if facts.get("left"):
        yield Broken("value:6 left", LEFT, facts["left"], 0)
    if "error" in case:
        if not facts["came out"]:
            words = "an item raises an error, and run_parallel returns as if nothing had happened: let it come out"
            yield Broken("value:5 error", words)
    elif case.get("kind"):
        yield from _any_results(case, facts)
    else:
        yield from _items(facts)
        yield from _shares(case, facts)


def _any_results(case: Case, facts: Facts) -> Iterator[Broken]:
    results = facts["results"]
    if not isinstance(results, list):
        yield Broken("value:2 kind", f"run_parallel returns a list, not {results}")
        return
    if len(results) != len(facts["items"]):
        yield Broken(
            "value:2 number", "run_parallel returns one result for each item", len(results), len(facts["items"])
        )
        return
    if [one[1] if isinstance(one, list) else one for one in results] != facts["items"]:
        words = (
            "the results are not those of the items, in their order. Items and results may be anything: equal ones, "
        )
        words += "None, 0, an error that is returned and not raised"
        yield Broken(
            "value:2 results", words, [one[1] if isinstance(one, list) else one for one in results], facts["items"]
        )
        return
    pids = {one[0] for one in results if isinstance(one, list)}
    if facts["caller"] in pids:
        yield Broken(
            "value:0 caller", "the process that calls does the work itself: start processes, also for few items"
        )
    elif len(pids) > case["workers"]:
        yield Broken(
            "value:3 workers", "more processes than workers: each costs time and memory", len(pids), case["workers"]
        )


def _items(facts: Facts) -> Iterator[Broken]:
    """Every item once, by other processes, with the right results in the right order."""
    notes, results = facts["notes"], facts["results"]
    here = [note for note in notes if note["pid"] == facts["caller"]]
    if here:
        threads = len({note["thread"] for note in here})
        how = f"in {threads} threads, which share one GIL" if threads > 1 else "one after the other"
        words = f"the process that calls does the work itself, {how}: start processes"
        yield Broken("value:0 caller", words, f"{len(here)} items", "0 items")
    times = collections.Counter(repr(note["item"]) for note in notes)
    if lost := [item for item in facts["items"] if not times[item]]:
        words = "items are never computed: they do not divide evenly among the workers"
        yield Broken("value:1 lost", words, f"{len(lost)} of {len(facts['items'])}", 0)
    if again := [item for item in facts["items"] if times[item] > 1]:
        words = f"each item is computed once; item {again[0]} {times[again[0]]} times"
        yield Broken("value:1 again", words)
    if not isinstance(results, list):
        yield Broken("value:2 kind", f"run_parallel returns a list, not {results}")
    elif results != facts["right"]:
        same = all(type(one) is float for one in results) and sorted(results) == sorted(facts["right"])
        why = "come in the order in which they are ready, not in that of the items" if same else "are wrong"
        yield Broken("value:2 results", f"the results {why}", results[:4], facts["right"][:4])


def _shares(case: Case, facts: Facts) -> Iterator[Broken]:
    """As many processes as asked for, with even shares, all at the same time, each with one thread."""
    shares = sorted(collections.Counter(note["pid"] for note in facts["notes"]).values(), reverse=True)
    workers, most = case["workers"], math.ceil(case["items"] / case["workers"])
    if len(shares) != workers:
        why = "each costs time and memory to start" if len(shares) > workers else "the others have nothing to do"
        yield Broken("value:3 workers", f"not so many processes as workers: {why}", len(shares), workers)
    elif shares[0] > most:
        words = "the items are not shared out evenly: the busiest process sets the pace"
        yield Broken("value:3 shares", words, f"shares of {shares}", f"at most {most}")
    elif facts["alone"]:
        words = "the processes do not work at the same time: start all before you wait for the first"
        yield Broken("value:3 alone", words)
    if (threads := max((note["torch threads"] for note in facts["notes"]), default=1)) > 1:
        words = "each process uses several threads of torch, and they fight for cores: torch.set_num_threads(1) in each"
        yield Broken("value:4 threads", words, f"{threads} threads", "1 thread")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case = played[0][0]
    most = math.ceil(case["items"] / case["workers"])
    return {
        "items": case["items"],
        "processes at work together": case["workers"],
        "items of the busiest": most,
        "shorter by": f"{case['items'] / most:.2f} times",
    }


CONTRACT = Contract(
    name="gil_and_refcounting.processes",
    rules={
        "run_parallel": Rules(
            changes=("around.the child processes",),  # Python keeps helpers; others are counted when it is over
            wire=None,
            allows=("starts:*", "writes:*", "course:utils*"),  # utils.launch starts processes too
        )
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *((f"value:{n}*", "{}") for n in range(5)),
        (
            "around:torch's defaults",
            "the process that calls has lost its threads: set the number in the workers only ({})",
        ),
        *((f"value:{n}*", "{}") for n in range(5, 7)),
    ),
    figures=figures,
    seconds=200,  # (spawned workers import torch, each for itself)
)
