"""Check of ``run_parallel``: each item once, by processes that work together. Nothing here measures time."""

from __future__ import annotations

import collections
import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, leaves, refuse
from checks.engine.inside import Outcome
from checks.engine.plain import kind_of, shorten
from checks.labs.gil_and_refcounting import process_items

PRELOAD = ("psutil", "concurrent.futures.process", "multiprocessing.pool")
OFFICIAL = Reference("gil_and_refcounting", "run_parallel")
THREADS = 3  # of torch in the process that calls: forked workers inherit them
ANYTHING = [3, 3, [1, 2], None, {"b": [3]}, 0, ValueError("a result"), "x" * 150_000, (), [1, 2]]
CASES: list[dict[str, Any]] = [
    {"items": 23, "workers": 4}, {"items": 9, "workers": 5},
    {"of any kind": 10, "workers": 2}, {"of any kind": 1, "workers": 2}, {"of any kind": 0, "workers": 1},
    {"items": 5, "fails in item": 3, "workers": 2},
]  # fmt: skip


def play(case: dict[str, Any], run_parallel: Callable[..., Any]) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # what spawned workers begin with
    process_items.helpers_can_be_sent(getattr(run_parallel, "function", run_parallel))
    with tempfile.TemporaryDirectory(prefix="items-") as folder:
        items = ANYTHING[: case["of any kind"]] if "of any kind" in case else [*range(10, 10 + case["items"])]
        function: Any = process_items.Failing()
        if "fails in item" in case:
            function = process_items.Failing(items[case["fails in item"]])
        elif "items" in case:
            function = process_items.InStep(folder, items, case["workers"])
        came_out = ""
        try:
            with process_items.ended_after(60), leaves(items=items):
                results = run_parallel(function, items, case["workers"])
        except BaseException as error:
            if "fails in item" not in case or (isinstance(error, Outcome) and error.__cause__ is None):
                raise
            came_out, results = "an error", []
        threads, left = torch.get_num_threads(), process_items.still_there()
        process_items.end_children()
        notes = function.notes() if isinstance(function, process_items.InStep) else []
        alone = os.path.exists(f"{folder}/alone")
    if notes:
        _judge_work(case, items, notes, alone)
    words = "an item raises an error, and run_parallel returns as if nothing had happened: let it come out"
    refuse("fails in item" in case and not came_out, words)
    words = "the process that calls has lost its threads: set the number in the workers only"
    refuse(threads != THREADS, words, measured=threads, expected=THREADS)
    words = "processes are left behind when run_parallel has returned: end them, and wait for them"
    refuse(left, words, measured=left, expected=0)
    refuse(not isinstance(results, list), "run_parallel returns a list", measured=kind_of(results))
    if "of any kind" in case:
        words = "run_parallel returns one result for each item, and these may be equal, None or empty"
        refuse(len(results) != len(items), words, measured=len(results), expected=len(items))
        return {"the results, which may be anything": [shorten(one, 40) for one in results]}
    words = "the results come in the order in which they are ready, not in that of the items"
    right = [item * item / 8 for item in items]
    refuse(notes and results != right and sorted(results) == right, words, measured=results[:4], expected=right[:4])
    return {"the results": results}


def _judge_work(case: dict[str, Any], items: list[int], notes: list[dict[str, Any]], alone: bool) -> None:
    """Every item once, by as many processes as asked for, with even shares, all at the same time."""
    here = [note for note in notes if note["pid"] == os.getpid()]
    threads = len({note["thread"] for note in here})
    how = f"in {threads} threads, which share one GIL" if threads > 1 else "one after the other"
    words = f"the process that calls does the work itself, {how}: start processes"
    refuse(here, words, measured=f"{len(here)} items", expected="0 items")
    times = collections.Counter(note["item"] for note in notes)
    lost = sum(item not in times for item in items)
    words = "items are never computed: they do not divide evenly among the workers"
    refuse(lost, words, measured=f"{lost} of {len(items)}", expected=0)
    again = max(times.values())
    refuse(again > 1, "each item is computed once", measured=f"{again} times", expected="once")
    shares = sorted(collections.Counter(note["pid"] for note in notes).values(), reverse=True)
    workers, most = case["workers"], math.ceil(len(items) / case["workers"])
    why = "each costs time and memory to start" if len(shares) > workers else "the others have nothing to do"
    words = f"not so many processes as workers: {why}"
    refuse(len(shares) != workers, words, measured=len(shares), expected=workers)
    words = "the items are not shared out evenly: the busiest process sets the pace"
    refuse(shares[0] > most, words, measured=f"shares of {shares}", expected=f"at most {most}")
    refuse(alone, "the processes do not work at the same time: start all before you wait for the first")
    threads = max(note["torch threads"] for note in notes)
    words = "each process uses several threads of torch, and they fight for cores: torch.set_num_threads(1) in each"
    refuse(threads > 1, words, measured=f"{threads} threads", expected="1 thread")
