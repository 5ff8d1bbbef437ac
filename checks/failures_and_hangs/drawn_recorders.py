"""Flight recorders of ranks that agree or do not, as ``pickle.loads(_dump_fr_trace())`` gives them in torch 2.13."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

Call = tuple[str, tuple[int, ...], str]  # operation, size, type
Calls = dict[int, Call]  # of a rank, by number
KINDS = ("missing", "order", "operation", "size", "type", "left out", "one more", "")
OF_EACH = 4
OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather")
TYPES = ("Float", "BFloat16", "Double", "Float8_e4m3fn")
BARRIER: Call = ("barrier", (), "")
STARTED = 1_795_413_985_351_994_000  # ns


def drawn(rng: random.Random) -> list[dict[str, Any]]:
    """For each launch the "dumps" of its ranks, and the "right" answer: [number, what, ranks], or None."""
    made = [_launch(rng, kind, turn) for turn in range(OF_EACH) for kind in KINDS]
    rng.shuffle(made)
    return made


def difference(ranks: Sequence[Calls]) -> list[Any] | None:
    """The first number, from where all recorders reach, at which the ranks differ; how; and which ranks."""
    for number in range(max(map(min, ranks)), max(map(max, ranks)) + 1):
        if absent := [rank for rank, calls in enumerate(ranks) if number not in calls]:
            return [number, "missing", absent]
        usual = _usual(ranks, number)
        odd = [rank for rank, calls in enumerate(ranks) if calls[number] != usual]
        if odd:
            following = _usual([calls for calls in ranks if calls[number] == usual], number + 1)
            if all((ranks[rank][number], ranks[rank].get(number + 1)) == (following, usual) for rank in odd):
                return [number, "order", odd]
            aspects = zip(("operation", "size", "type"), usual, ranks[odd[0]][number], strict=True)
            return [number, next(aspect for aspect, one, other in aspects if one != other), odd]
    return None


def _usual(ranks: Sequence[Calls], number: int) -> Call | None:
    return Counter(calls.get(number) for calls in ranks).most_common(1)[0][0]


def _launch(rng: random.Random, kind: str, turn: int) -> dict[str, Any]:
    one_by_one = kind == "missing" and turn == 2  # ranks stop one after the other
    world, length, oldest = (
        rng.randint(5 if one_by_one else 3, 6),
        rng.randint(7, 10),
        rng.choice((1, rng.randint(2, 900))),
    )
    at = oldest + 2 + (kind == "missing")  # the first that all of them have, or the one behind it
    if turn < OF_EACH - 1:
        at = rng.randint(oldest + 3, oldest + length - 3)
    if turn < 2 and kind not in ("order", "left out"):  # which need the collective behind it
        at = oldest + length - 1
    calls: Calls = {}
    for number in range(oldest, oldest + length):
        calls[number] = _call(rng, not calls.get(number - 1), calls.get(number - 1), barrier=number != at)
    few = sorted(rng.sample(range(world), rng.randint(1 + one_by_one, (world - 1) // 2)))
    if kind == "missing" and turn % 2:  # most of the ranks have not come
        few = [rank for rank in range(world) if rank not in few]
    if kind == "size" and turn < 3:
        calls[at] = calls[at][0], (rng.randint(1, 31), rng.randint(32, 64)), calls[at][2]
    fault = _with_fault(rng, calls, kind, at, turn)
    of_few = {
        rank: _with_fault(rng, calls, kind, at + place, turn) if one_by_one else fault for place, rank in enumerate(few)
    }
    ranks, oldest_lost = [], rng.randrange(world)
    for rank in range(world):  # a recorder keeps the newest, of as many as there is room for
        lost = 2 if rank == oldest_lost else rng.randint(0, 2)
        own = of_few.get(rank, calls)
        ranks.append({number: call for number, call in own.items() if number >= oldest + lost})
    groups = _groups(rng, world, oldest)
    dumps = [_dump(rng, of_rank, groups[rank]) for rank, of_rank in enumerate(ranks)]
    return {"dumps": dumps, "right": difference(ranks)}


def _call(rng: random.Random, first: bool, before: Call | None, barrier: bool) -> Call:
    """Another one than before: two that are alike could change places, and nobody would see it."""
    while True:
        size = tuple(rng.randint(1, 64) for _ in range(rng.randint(1, 2)))
        call = BARRIER if barrier and rng.random() < 0.15 else (rng.choice(OPERATIONS), size, "Float")
        if first or call != before:
            return call


def _with_fault(rng: random.Random, calls: Calls, kind: str, at: int, turn: int) -> Calls:
    """The calls of a rank that goes its own way from a number on."""
    operation, size, dtype = calls[at]
    more, other = rng.randint(1, 9), size
    if size:  # the first number, the last one, or as many in another shape
        other = [(size[0] + more, *size[1:]), (*size[:-1], size[-1] + more), size[::-1]][turn if turn < 3 else 0]
    if kind == "missing":
        return {number: call for number, call in calls.items() if number < at}
    if kind == "left out":
        return {number - (number > at): call for number, call in calls.items() if number != at}
    if kind == "one more":
        other = rng.choice([one for one in OPERATIONS if one != operation])
        later = {number + (number >= at): call for number, call in calls.items()}
        return dict(sorted((later | {at: (other, (rng.randint(65, 99),), dtype)}).items()))
    if kind == "order":
        return calls | {at: calls[at + 1], at + 1: calls[at]}
    changed = {
        "operation": (rng.choice([one for one in OPERATIONS if one != operation]), size, dtype),
        "size": (operation, other, dtype),
        "type": (operation, size, rng.choice(TYPES[1:])),
    }
    return calls | ({at: changed[kind]} if kind in changed else {})


def _groups(rng: random.Random, world: int, oldest: int) -> list[tuple[int, list[Call]]]:
    """Of each rank: the number of the group that it has with some of the others, and what they call there."""
    halves, middle = [], rng.randint(1, world - 1)
    for _ in range(2):
        calls = [_call(rng, True, None, barrier=False) for _ in range(rng.choice((0, 3, 5)))]
        halves.append((oldest, calls))
    return [halves[rank >= middle] for rank in range(world)]


def _dump(rng: random.Random, calls: Calls, group: tuple[int, list[Call]]) -> dict[str, Any]:
    """What one rank writes down: the collectives of the whole world, and of a smaller group among them."""
    record, entries, (first, others) = rng.randint(0, 5), [], group
    left = list(enumerate(others, start=first))
    for number, call in calls.items():
        entries.append(_entry(record + len(entries), 0, number, call))
        while left and rng.random() < 0.5:
            entries.append(_entry(record + len(entries), 1, *left.pop(0)))
    last = {"last_completed_collective": max(calls), "last_enqueued_collective": max(calls)}
    return {
        "version": "2.10",
        "comm_lib_version": "",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
        "pg_status": {"0": last | {"last_started_collective": -1}},
        "entries": entries,
    }


def _entry(record: int, group: int, number: int, call: Call) -> dict[str, Any]:
    operation, size, dtype = call
    sizes, dtypes = ([], []) if operation == "barrier" else ([list(size)], [dtype])
    return {
        "record_id": record,
        "pg_id": group,
        "process_group": (str(group), "undefined" if group else "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"gloo:{operation}",
        "time_created_ns": STARTED + record * 11_000_000,
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": [list(one) for one in sizes],
        "output_dtypes": list(dtypes),
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        "thread_id": "140445825055616",
        "thread_name": "python",
    }
