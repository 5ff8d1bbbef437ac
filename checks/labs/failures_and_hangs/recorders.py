"""Check of ``first_difference``: flight recorders, as ``pickle.loads(_dump_fr_trace())`` gives them in torch 2.13."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.judging import drawn
from checks.engine.plain import from_array, shorten

MISSING, WHOLE = 'return number, "missing", missing', 'str(entry["input_sizes"])'
ORDER = "(call, ranks[odd[0]].get(number + 1)) == (following, usual)"
OFFICIAL = Reference("failures_and_hangs", "first_difference", {
    "a collective that some ranks have not called is a difference too": {", max(map(max": ", min(map(max"},
    "another type is a difference too, and yours does not see it": {', str(entry["input_dtypes"])': ', ""'},
    "sizes are compared whole: as many elements in another shape are another size":
        {WHOLE: 'str([sorted(one) for one in entry["input_sizes"]])'},
    "sizes are compared whole, not by their last number": {WHOLE: 'str([one[-1:] for one in entry["input_sizes"]])'},
    "ranks that call two collectives the other way round differ in their order": {ORDER: "False"},
    "the order is another one if both collectives are exchanged, not only one of them": {ORDER: "call == following"},
    "all ranks that have no such entry are missing, not the first of them": {MISSING: MISSING + "[:1]"},
})  # fmt: skip
KINDS = ("missing", "order", "operation", "size", "type", "one more", "left out", "")
OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather")
Call = tuple[str, list[int], str]  # operation, size, type


def draw(rng: random.Random, turn: int) -> dict[str, Any]:
    kind, again = KINDS[turn % len(KINDS)], turn // len(KINDS)
    world, oldest = rng.randint(3, 6), rng.choice((1, rng.randint(2, 900)))
    calls = [_call(rng, place) for place in range(rng.randint(7, 10))]
    at = (rng.randint(3, len(calls) - 3), 2 + (kind == "missing"), len(calls) - 1)[again % 3]  # 2: all still have it
    if kind in ("order", "left out"):
        at = min(at, len(calls) - 3)
    calls[at] = rng.choice(OPERATIONS), [rng.randint(1, 31), rng.randint(32, 64)], "Float"
    few = rng.sample(range(world), rng.randint(1, (world - 1) // 2))
    if kind == "missing" and again % 2:  # most ranks have not come
        few = [rank for rank in range(world) if rank not in few]
    fault = _with_fault(rng, calls, kind, at, again)
    loses_most, middle = rng.randrange(world), rng.randint(1, world - 1)
    halves = [[_call(rng, place) for place in range(rng.choice((0, 3, 5)))] for _ in range(2)]
    dumps = []
    for rank in range(world):
        own = fault if rank in few else calls
        if own is fault and kind == "missing" and again > 1:  # they stop one after the other
            own = calls[: at + few.index(rank)]
        lost = 2 if rank == loses_most else rng.randint(0, 2)
        dumps.append(_dump(rng, [*enumerate(own, oldest)][lost:], [*enumerate(halves[rank >= middle], oldest)]))
    return {"launch": f"check.drawn_dumps({turn})", "dumps": dumps}


def _call(rng: random.Random, place: int) -> Call:
    """Another one than its neighbours: two that are alike could change places, and nobody would see it."""
    size = [3 * rng.randint(1, 21) + place % 3, rng.randint(1, 64)][: rng.randint(1, 2)]
    barrier = place % 3 == 2 and rng.random() < 0.5
    return ("barrier", [], "") if barrier else (rng.choice(OPERATIONS), size, "Float")


def _with_fault(rng: random.Random, calls: list[Call], kind: str, at: int, again: int) -> list[Call]:
    """The calls of a rank that goes its own way from a place on."""
    operation, size, dtype = calls[at]
    another = rng.choice([one for one in OPERATIONS if one != operation])
    sizes = [size[0] + rng.randint(1, 9), size[1]], size[::-1], [size[0], size[1] + rng.randint(1, 9)]
    rest, dtypes = calls[at + 1 :], ("BFloat16", "Double", "Float8_e4m3fn")
    ways = {
        "operation": [(another, size, dtype), *rest], "size": [(operation, sizes[again % 3], dtype), *rest],
        "type": [(operation, size, rng.choice(dtypes)), *rest], "missing": [], "left out": rest, "": calls[at:],
        "order": [*rest[:1], calls[at], *rest[1:]], "one more": [(another, [rng.randint(65, 99)], dtype), *calls[at:]],
    }  # fmt: skip
    return calls[:at] + ways[kind]


def _dump(rng: random.Random, calls: list[Any], others: list[Any]) -> dict[str, Any]:
    """What one rank writes down: the collectives of all ranks, and of a smaller group among them."""
    record = rng.randint(0, 5)
    entries: list[dict[str, Any]] = []
    for call in calls:
        entries.append(_entry(record + len(entries), 0, *call))
        while others and rng.random() < 0.5:
            entries.append(_entry(record + len(entries), 1, *others.pop(0)))
    return {"version": "2.10", "comm_lib_version": "", "pg_config": {}, "pg_status": {}, "entries": entries}


def _entry(record: int, group: int, number: int, call: Call) -> dict[str, Any]:
    sizes, dtypes = ([], []) if call[0] == "barrier" else ([call[1]], [call[2]])
    return {
        "record_id": record, "pg_id": group, "process_group": (str(group), "undefined" if group else "default_pg"),
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": f"gloo:{call[0]}",
        "time_created_ns": 1_795_413_985_351_994_000 + record * 11_000_000, "input_sizes": sizes,
        "input_dtypes": dtypes, "output_sizes": [list(size) for size in sizes], "output_dtypes": list(dtypes),
        "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": True,
        "timeout_ms": 1_800_000, "is_p2p": False, "thread_id": "140445825055616", "thread_name": "python",
    }  # fmt: skip


CASES = drawn(draw, 40)


def drawn_dumps(number: int) -> list[dict[str, Any]]:
    """The flight recorders of a launch, as its check has numbered it: a dump for each rank."""
    return drawn(draw, 40)[number]["dumps"]


@exercise(OFFICIAL, CASES, title="Read the flight recorder", difficulty=2, minutes=30)
def flight_recorder(case: dict[str, Any], first_difference: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``first_difference(dumps)``, which returns a number, what differs, and ranks; or None."""
    with leaves(dumps=case["dumps"]):
        result = first_difference(case["dumps"])
    if result is None:
        return {"the number": None, "what differs": None, "the ranks": None}
    three = isinstance(result, tuple | list) and len(result) == 3
    fault = "the result is neither None nor three: a number, a word, a list of ranks"
    refuse(not three, fault, measured=shorten(result))
    number, what, ranks = (from_array(part) for part in result)
    refuse(isinstance(ranks, int | str), "the ranks are a list of whole numbers", measured=shorten(ranks))
    calls = [{entry["collective_seq_id"]: (entry["profiling_name"], str(entry["input_sizes"] + entry["input_dtypes"]))
              for entry in dump["entries"] if entry["pg_id"] == 0} for dump in case["dumps"]]  # fmt: skip
    row, begin = [own.get(number) for own in calls], max(map(min, calls))
    refuse(not any(row), f"there is no collective {number} of all ranks: look at `process_group`")
    refuse(number < begin, f"some recorders have already lost collective {number}: compare from {begin}")
    refuse(len(set(row)) == 1, f"in collective {number} of all ranks, all do the same")
    usual, theirs = Counter(row).most_common(1)[0][0], {row[rank] for rank in ranks if rank in range(len(row))}
    some = what == "missing" and theirs - {None}
    refuse(some, f"not all of ranks {ranks} are missing: some have collective {number}")
    refuse(what != "missing" and usual in theirs, f"not all of ranks {ranks} are odd: some do what most do")
    return {"the number": number, "what differs": what, "the ranks": sorted(ranks)}
