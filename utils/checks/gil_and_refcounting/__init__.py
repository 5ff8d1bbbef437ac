"""The exercises of this lab: reference counts, training loops that leak, processes instead of threads."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Any

from utils.checks import Wrong, exercise, expect, how_far, run
from utils.checks.gil_and_refcounting import probes, process_items, situations

SECONDS = 40  # for each process; on a busy machine importing torch's parts takes some


# --- 1: predict ------------------------------------------------------------------------------------------------


@exercise(title="Predict reference counts", difficulty=1, minutes=15)
def predict(predictions: Any) -> dict[str, Any]:
    """Judge ``predictions()``, which returns a dict from situations to references that they add."""
    predicted = run(predictions)
    names = [situation.__name__ for situation in situations.SITUATIONS]
    if not isinstance(predicted, dict):
        raise Wrong("predictions returns a dict from names of functions to numbers", measured=predicted)
    if strange := [name for name in predicted if name not in names]:
        raise Wrong(f"there is no function {strange[0]!r}: use the functions' names as keys, as text.")
    if missing := [name for name in names if name not in predicted]:
        raise Wrong(f"{missing[0]} has no prediction", measured=len(predicted), expected=len(names))
    if no_number := [name for name in names if type(predicted[name]) is not int]:
        raise Wrong(f"{no_number[0]} needs a whole number", measured=predicted[no_number[0]])
    truth = run(situations.references, timeout=SECONDS)["truth"]["right"]
    wrong = [name for name in names if predicted[name] != truth[name]]
    if len(wrong) > len(names) // 2 and all(predicted[name] - truth[name] == 1 for name in names):
        raise Wrong("every number is one too large: only what the function adds counts, not the name that was there.")
    if wrong:
        name, right = wrong[0], f"{len(names) - len(wrong)} of {len(names)} are right"
        raise Wrong(f"{right}. {name} adds {truth[name]}, not {predicted[name]}: {situations.WHY[name]}.")
    return {"predictions": len(names), "measured in this Python": "the same"}


# --- 2: measure ------------------------------------------------------------------------------------------------

_WAYS = {
    "dropped": "what the situation returns must stay alive until you have counted: give it a name",
    "absolute": "this is the whole count, with the references that were there before: count before and after",
    "another": "count the same tensor, in the same way, before and after: sys.getrefcount's own argument counts too",
    "holders": "gc.get_referrers lists who holds the tensor, each holder once and only those that it knows: "
    "sys.getrefcount counts references",
    "warmed up": "the situation runs before you count: what it leaves behind was there already, the second time",
    "twice": "the situation runs twice: what the first call leaves behind counts too",
    "collected": "the cycle collector runs before you count, and takes away what was to be counted",
}


@exercise(title="Measure reference counts", difficulty=1, minutes=10)
def measure(added_references: Any) -> dict[str, Any]:
    """Judge ``added_references(situation)``: how many references to a new tensor a situation adds."""
    found = run(situations.references, added_references, timeout=SECONDS)
    truth, tool = found["truth"], found["tool"]
    if how_far(tool, truth["right"]) is None:
        return {"situations": len(tool), "of them in no notebook": len(situations.HIDDEN)}
    different = [name for name in tool if how_far(tool[name], truth["right"][name])]
    name = different[0]
    figures = {"measured": f"{tool[name]} in {name}", "expected": truth["right"][name]}
    if any(type(tool[name]) is not int for name in tool):
        raise Wrong("added_references returns one whole number", measured=tool[name])
    for way, sentence in _WAYS.items():
        if tool == truth[way]:
            raise Wrong(sentence, **figures)
    if not any(tool.values()):
        raise Wrong("every situation seems to add nothing: count once before, and once after the call", **figures)
    raise Wrong(f"{len(different)} of {len(tool)} situations are measured wrong", **figures)


# --- 3 to 5: leaks ---------------------------------------------------------------------------------------------

STEPS = (13, 26)
CLOSE = {"relative": 1e-5, "absolute": 1e-6}
WHAT_STAYS = {
    "watch": "each step leaves the graph of a loss behind, with its activations",
    "log": "each step leaves the activations of the hidden layer behind",
    "errors": "an error stays, and with it its traceback, its frames, and all tensors that they name",
}
ONE_NUMBER = 512  # bytes: the smallest piece that a GPU's allocator hands out


@exercise(title="A sum that remembers", difficulty=1, minutes=10)
def watched_loss(train_and_watch: Any) -> dict[str, Any]:
    """Judge ``train_and_watch(model, optimizer, batches, watched)``, which returns a mean loss."""

    def judge(result: Any, right: Any, steps: int) -> None:
        if not isinstance(result, float):
            raise Wrong("train_and_watch returns a plain number: .item() makes one of a tensor", measured=result)
        if how_far(result, right * steps, **CLOSE) is None:
            raise Wrong("this is the sum of the watched losses: divide by the number of batches", measured=result)
        expect("Look at the watched batch after each step, and return the mean of all losses", result, right, **CLOSE)

    return _judge_leak("watch", train_and_watch, probes.right_watch, judge)


@exercise(title="A hook that collects", difficulty=2, minutes=15)
def hidden_means(train_and_log: Any) -> dict[str, Any]:
    """Judge ``train_and_log(model, optimizer, batches)``, which returns a list of means."""

    def judge(result: Any, right: Any, steps: int) -> None:
        if not isinstance(result, list) or not all(isinstance(mean, float) for mean in result):
            raise Wrong("train_and_log returns a list of plain numbers: .item() makes one of a tensor", measured=result)
        if len(result) != steps:
            raise Wrong("the list has one mean for each step", measured=len(result), expected=steps)
        if distance := how_far(result, right, **CLOSE):
            raise Wrong(f"these are not the means of what model[1] puts out: {distance}.")

    return _judge_leak("log", train_and_log, probes.right_log, judge)


@exercise(title="Errors that hold on", difficulty=2, minutes=15)
def broken_batches(train_through_errors: Any) -> dict[str, Any]:
    """Judge ``train_through_errors(train_step, batches)``, which returns numbers of batches and texts."""

    def judge(result: Any, right: Any, steps: int) -> None:
        if not isinstance(result, list) or not all(
            isinstance(pair, tuple | list) and len(pair) == 2 for pair in result
        ):
            raise Wrong("train_through_errors returns a list of pairs: number and text", measured=result)
        if [pair[0] for pair in result] == [number + 1 for number, _ in right]:
            raise Wrong("batches are counted from 0, yours from 1.")
        expect("Other batches are broken", [pair[0] for pair in result], [number for number, _ in right])
        if other := [pair[1] for pair, (_, text) in zip(result, right, strict=True) if pair[1] != text]:
            raise Wrong("the text of an error is what str(error) gives", measured=other[0], expected=right[0][1])

    figures = _judge_leak("errors", train_through_errors, probes.right_errors, judge)
    if (kind := run(probes.other_error, train_through_errors, timeout=SECONDS)) != "MemoryError":
        raise Wrong(
            "only a ValueError means a broken batch; any other error must come out",
            measured=kind or "no error",
            expected="MemoryError",
        )
    return figures


def _judge_leak(kind: str, train: Any, right: Any, judge_result: Any) -> dict[str, Any]:
    for steps, (mine, wanted) in zip(
        STEPS, run(probes.leaks_twice, train, right, kind, STEPS, timeout=SECONDS), strict=True
    ):
        if len(mine["bytes"]) != len(wanted["bytes"]):
            raise Wrong(
                "each batch is trained on once, also after a broken one",
                measured=f"{len(mine['bytes'])} steps",
                expected=f"{len(wanted['bytes'])} steps",
            )
        _judge_growth(kind, mine, wanted)
        if how_far(mine["parameters"], wanted["parameters"], **CLOSE):
            raise Wrong(
                "the model is not trained as before: the leak must go, but the training needs its graph until backward."
            )
        judge_result(mine["result"], wanted["result"], steps)
        if how_far(mine["gradients"], wanted["gradients"], **CLOSE):
            raise Wrong("the gradients afterwards are not those of the last training step: is there a second backward?")
        if mine["hooks"]:
            raise Wrong(
                "the model still has a hook when the function returns, and goes on collecting: handle.remove()",
                measured=mine["hooks"],
                expected=0,
            )
        if mine["collections"] > 1:
            raise Wrong(
                "the cycle collector sweeps up a leak that need not be: each call looks at every object there is. Let "
                "nothing hold what is not needed",
                measured=f"{mine['collections']} calls of gc.collect() in {steps} steps",
                expected="0",
            )
    return {"steps": f"{STEPS[0]} and {STEPS[1]}", "piled up on the GPU": "0 bytes", "tensors piled up": 0}


def _judge_growth(kind: str, mine: dict[str, Any], wanted: dict[str, Any]) -> None:
    """What is alive and need not be is not more after a later step than after the second or third."""
    more = [here - there for here, there in zip(mine["bytes"], wanted["bytes"], strict=True)]
    settled = 1 if kind == "errors" else 2  # from here on gradients and the optimizer's state are there
    swept = ". gc.collect() does not help: it frees cycles, not what is in use" if mine["collections"] > 1 else ""
    if (piled := max(more[settled:]) - more[settled]) > 0:
        figures = {"measured": f"up to {piled:,} bytes too much in {len(more)} steps", "expected": "0 bytes"}
        if max(later - earlier for earlier, later in itertools.pairwise(more[settled:])) <= ONE_NUMBER:
            raise Wrong(
                f"a tensor with one number stays for each step and takes {ONE_NUMBER} bytes: keep plain numbers",
                **figures,
            )
        raise Wrong(f"{WHAT_STAYS[kind]}{swept}", **figures)
    live = [here - there for here, there in zip(mine["tensors"], wanted["tensors"], strict=True)]
    if max(live[settled:]) > live[settled]:
        raise Wrong(
            "the GPU's memory does not grow, but the host's does: tensors pile up",
            measured=f"{max(live[settled:]) - live[settled]} live tensors too many after {len(live)} steps",
            expected="0",
        )


# --- 6: processes ----------------------------------------------------------------------------------------------

CASES = ((23, 4), (5, 3))  # items, workers. Shares of 6, 6, 6 and 5, and of 2, 2 and 1
ENDS = 60  # seconds in which an error of an item must come out


@exercise(title="Processes instead of threads", difficulty=2, minutes=20, timeout=240)
def processes(run_parallel: Any) -> dict[str, Any]:
    """Judge ``run_parallel(function, items, workers)``: results in the order of the items."""
    for count, workers in CASES:
        items = [(7 * number + 3) % 101 for number in range(count)]
        found = run(process_items.processes, run_parallel, items, workers, timeout=120)
        case = f"{count} items and {workers} workers"
        _judge_items(case, items, found)
        _judge_shares(case, count, workers, found)
        _judge_neighbours(case, found)
    if not run(process_items.failing_item, run_parallel, ENDS, timeout=ENDS + 10):
        raise Wrong("an item raises an error, and run_parallel returns as if nothing had happened: let it come out")
    count, workers = CASES[0]
    most = math.ceil(count / workers)
    return {
        "items": count,
        "processes at work together": workers,
        "items of the busiest": most,
        "shorter by": f"{count / most:.2f} times",
    }


def _judge_items(case: str, items: list[int], found: dict[str, Any]) -> None:
    """Every item once, by other processes, with the right results in the right order."""
    notes, results = found["notes"], found["results"]
    here = [note for note in notes if note["pid"] == found["caller"]]
    if here:
        threads = len({note["thread"] for note in here})
        how = f"in {threads} threads, which share one GIL" if threads > 1 else "one after the other"
        raise Wrong(
            f"the process that calls does the work itself, {how}: start processes. See {case}",
            measured=f"{len(here)} items",
            expected="0 items",
        )
    times = collections.Counter(note["item"] for note in notes)
    if lost := [item for item in items if not times[item]]:
        raise Wrong(f"items are never computed: {len(lost)} of {case}, which do not divide evenly.")
    if again := [item for item in items if times[item] > 1]:
        raise Wrong(f"each item is computed once; item {again[0]} of {case} {times[again[0]]} times.")
    if not isinstance(results, list):
        raise Wrong(f"run_parallel returns a list, not a {type(results).__name__}. See {case}.")
    if how_far(results, found["right"]):
        same = all(isinstance(one, float) for one in results) and sorted(results) == sorted(found["right"])
        why = "come in the order in which they are ready, not in that of the items" if same else "are wrong"
        raise Wrong(f"the results {why}. See {case}", measured=results[:4], expected=found["right"][:4])


def _judge_shares(case: str, count: int, workers: int, found: dict[str, Any]) -> None:
    """As many processes as asked for, with even shares, and all at the same time."""
    shares = sorted(collections.Counter(note["pid"] for note in found["notes"]).values(), reverse=True)
    if len(shares) != workers:
        why = "each costs time and memory to start" if len(shares) > workers else "the others have nothing to do"
        raise Wrong(f"not so many processes as workers: {why}. See {case}", measured=len(shares), expected=workers)
    if shares[0] > (most := math.ceil(count / workers)):
        raise Wrong(
            f"the items are not shared out evenly: the busiest process sets the pace. See {case}",
            measured=f"shares of {shares}",
            expected=f"at most {most}",
        )
    if found["alone"]:
        raise Wrong(
            f"the processes do not work at the same time: start all before you wait for the first. See {case}.",
        )


def _judge_neighbours(case: str, found: dict[str, Any]) -> None:
    """Nobody takes more than their share of the computer."""
    if (threads := max(note["torch threads"] for note in found["notes"])) > 1:
        raise Wrong(
            "each process uses several threads of torch, and they fight for cores: torch.set_num_threads(1) in each",
            measured=f"{threads} threads",
            expected="1 thread",
        )
    if found["threads"] != process_items.THREADS:
        raise Wrong(
            "the process that calls has lost its threads: set the number in the workers only",
            measured=found["threads"],
            expected=process_items.THREADS,
        )
    if found["left"]:
        raise Wrong(
            f"processes are left behind when run_parallel has returned: end them, and wait for them. See {case}",
            measured=found["left"],
            expected=0,
        )
