"""Check of ``run_parallel``: each item once, by processes that work together. Nothing here measures time."""

from __future__ import annotations

import collections
import json
import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.inside import Outcome
from checks.engine.plain import kind_of, shorten
from checks.labs.gil_and_refcounting import process_items

PRELOAD = ("concurrent.futures.process", "multiprocessing.pool")
OFFICIAL = Reference("gil_and_refcounting", "run_parallel")
THREADS = 3  # of torch in the process that calls: forked workers inherit them
ANYTHING = [3, 3, [1, 2], None, {"b": [3]}, 0, ValueError("a result"), "x" * 150_000, (), [1, 2]]
CASES: list[dict[str, Any]] = [
    {"items": 23, "workers": 4}, {"items": 9, "workers": 5},
    {"of any kind": 10, "workers": 2}, {"of any kind": 1, "workers": 2}, {"of any kind": 0, "workers": 1},
    {"items": 5, "an item": "fails", "workers": 2},
]  # fmt: skip


@exercise(OFFICIAL, CASES, title="Processes instead of threads", difficulty=2, minutes=20, timeout=200)
def processes(case: dict[str, Any], run_parallel: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``run_parallel(function, items, workers)``: results in the order of the items."""
    torch.set_num_threads(THREADS)
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # what spawned workers begin with
    process_items.helpers_can_be_sent(getattr(run_parallel, "function", run_parallel))
    fails, workers = "an item" in case, case["workers"]
    items: list[Any] = [*range(10, 10 + case["items"])] if "items" in case else ANYTHING[: case["of any kind"]]
    with tempfile.TemporaryDirectory(prefix="items-") as folder:
        function: Any = process_items.itself
        if "items" in case and not fails:
            function = process_items.InStep(folder, items, workers)
        results: Any = None
        try:
            with process_items.ended_after(60), leaves(items=items):
                results = run_parallel(function, items, workers)
        except (Exception, Outcome) as error:
            if not fails or process_items.WAITS in str(error):
                raise
        else:
            fault = "an item raises an error, and run_parallel returns as if nothing had happened: let it come out"
            refuse(fails, fault)
        threads, left = torch.get_num_threads(), process_items.end_children(3.0)
        if isinstance(function, process_items.InStep):
            _refuse_work(case, items, function)
    fault = "the process that calls has lost its threads: set the number in the workers only"
    refuse(threads != THREADS, fault, measured=threads, expected=THREADS)
    fault = "processes are left behind when run_parallel has returned: end them, and wait for them"
    refuse(left, fault, measured=left, expected=0)
    refuse(not (fails or isinstance(results, list)), "run_parallel returns a list", measured=kind_of(results))
    texts = [shorten(result, 40) for result in results or ()]
    right = [str(item * item / 8) for item in items] if isinstance(function, process_items.InStep) else texts
    fault = "the results come in the order in which they are ready, not in that of the items"
    refuse(texts != right and sorted(texts) == sorted(right), fault, measured=texts[:4], expected=right[:4])
    return {"the results, one for each item": texts}


def _refuse_work(case: dict[str, Any], items: list[int], function: process_items.InStep) -> None:
    """Every item once, by as many processes as asked for, with even shares, all at the same time."""
    notes, workers = [json.loads(path.read_text()) for path in function.folder.glob("*.*")], case["workers"]
    here = [note["thread"] for note in notes if note["pid"] == function.caller]
    how = f"in {len({*here})} threads, which share one GIL" if len({*here}) > 1 else "one after the other"
    fault = f"the process that calls does the work itself, {how}: start processes"
    refuse(here, fault, measured=f"{len(here)} items", expected="0 items")
    times = collections.Counter(note["item"] for note in notes)
    fault = "not every item is computed once (they need not divide evenly among the workers)"
    refuse(times != dict.fromkeys(items, 1), fault, measured=f"{len(notes)} calls for {len(times)} of {len(items)}")
    shares = sorted(collections.Counter(note["pid"] for note in notes).values(), reverse=True)
    fault = "the items are not shared out evenly among as many processes as there are workers"
    wrong = len(shares) != workers or shares[0] > math.ceil(len(items) / workers)
    refuse(
        wrong, fault, measured=f"shares of {shares}", expected=f"{workers} shares, none over n / workers, rounded up"
    )
    alone = function.alone.exists()
    refuse(alone, "the processes do not work at the same time: start all before you wait for the first")
    threads = max(note["torch threads"] for note in notes)
    fault = "each process uses several threads of torch, and they fight for cores: torch.set_num_threads(1) in each"
    refuse(threads > 1, fault, measured=f"{threads} threads", expected="1 thread")
