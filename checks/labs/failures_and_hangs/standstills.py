"""Check of ``held_up_by``: stacks of all ranks, in the form that torch 2.13 and Python 3.11 have shown, are read."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.judging import drawn
from checks.engine.refusing import named

LIBRARY, C10D, DDP = "/usr/lib/python3.11", "torch/distributed/distributed_c10d", "torch/nn/parallel/distributed"
OFFICIAL = Reference("failures_and_hangs", "held_up_by", {
    "whoever waits in a line of its own holds up the others too: yours looks only for ranks that do not wait":
        {"if place != usual": "if False"},
})  # fmt: skip
SIGNS = "distributed_c10d|_engine_run_backward|_pre_forward"
KINDS = ("busy", "busy in a library", "elsewhere", "alike")


def _stack(calls: str) -> list[str]:
    """Lines of a stack, the newest call first, from "module line function, …"; torch is where Debian has it."""
    rows = [call.split() for call in calls.replace("torch/", "dist-packages/torch/").split(", ")]
    folder = {"train": "/course"}
    return [f'  File "{folder.get(file, LIBRARY)}/{file}.py", line {line} in {name}' for file, line, name in rows]


CALLS = "3252 all_reduce", "5356 barrier", "3151 broadcast", "4287 all_gather"
WAITING = [
    *(_stack(f"{C10D} {call}, torch/distributed/c10d_logger 83 wrapper") for call in CALLS),
    _stack("torch/autograd/graph 979 _engine_run_backward, torch/_tensor 623 backward"),
    _stack(f"{DDP} 2363 _distributed_broadcast_coalesced, {DDP} 1782 _pre_forward, {DDP} 1886 forward"),
]
IN_LIBRARIES = [
    _stack("selectors 415 select, multiprocessing/connection 947 wait")
    + _stack("torch/utils/data/dataloader 1291 _try_get_data, torch/utils/data/dataloader 725 __next__"),
    _stack("torch/distributed/checkpoint/filesystem 764 write_data"),
    _stack("subprocess 1209 communicate, subprocess 550 run"),
]
STARTED = "threading 1045 _bootstrap_inner, threading 1002 _bootstrap"


def draw(rng: random.Random, turn: int) -> dict[str, Any]:
    kind, again = KINDS[turn % len(KINDS)], turn // len(KINDS)
    world = 2 if kind != "elsewhere" and again % 2 else rng.randint(3, 8)  # (of two, none is "elsewhere")
    bad = None if kind == "alike" else (0, world - 1, rng.randrange(world))[again // 2 % 3]
    lines = sorted(rng.sample((*range(5, 10), *range(15, 50), *range(80, 140)), 6))  # of one to three digits
    usual, odd = rng.sample(lines[2:4], 2)
    wait, other = rng.sample(WAITING, 2)
    background = [  # a checkpoint that is written there has a group of its own
        WAITING[1] + _stack(f"train {lines[1]} write, threading 982 run, {STARTED}"),
        _stack(f"train {lines[0]} beat, threading 982 run, {STARTED}"),
        _stack(f"threading 331 wait, threading 629 wait, {STARTED}"),
    ]
    stacks = []
    for rank in range(world):
        waits, line = wait, usual
        if rank == bad:
            own = {"elsewhere": wait if again % 2 else other, "busy": []}
            waits, line = own.get(kind, IN_LIBRARIES[again % 3]), odd
            waits = waits + _stack(f"train {lines[1]} load") * (kind != "elsewhere" and rng.randint(0, 1))
        calls = waits + _stack(f"train {line} train, train {lines[4]} main, train {lines[5]} <module>")
        others = background[: 1 + again % 3] if rank == bad else rng.sample(background, rng.randint(0, 3))
        text = ""
        for thread in [*others, calls]:
            head = "\nThread" if thread in others else "\nCurrent thread"
            head += f" 0x{rng.randrange(16**9, 16**10):016x} (most recent call first):"
            text += "\n".join([head, *thread, ""])
        stacks.append(text.lstrip())
    return {"launch": f"check.drawn_stacks({turn})", "stacks": stacks}


CASES = drawn(draw, 40)


def drawn_stacks(number: int) -> list[str]:
    """The stacks of a launch, as its check has numbered it: a text for each rank."""
    return drawn(draw, 40)[number]["stacks"]


@exercise(OFFICIAL, CASES, title="Read the stacks", difficulty=2, minutes=25)
def stacks(case: dict[str, Any], held_up_by: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``held_up_by(stacks)``, which returns a rank and a line; or None."""
    with leaves(stacks=case["stacks"]):
        result = held_up_by(case["stacks"])
    if result is None:
        return {"the rank and its line": None}
    rank, line = named(result, "two", ("rank", "line")).values()
    mains = [stack.partition("Current thread")[2] for stack in case["stacks"]]
    own = [re.findall(r'train\.py", line (\d+)', main) for main in mains]
    places, late = [lines[0] for lines in own], [r for r, main in enumerate(mains) if not re.search(SIGNS, main)]
    refuse(rank not in range(len(places)), f"there is no rank {rank}")
    refuse(len(set(places)) == 1, "all ranks wait in the same line, and none of them holds up the others: return None")
    refuse(places.count(places[rank]) > 1, f"rank {rank} waits where other ranks wait too: it is held up itself")
    refuse(late and rank not in late, f"rank {rank} waits, and another one is in no collective: that one is late")
    refuse(str(line) in own[rank][1:], f"rank {rank} it is; line {line} has called what is going on in another line")
    refuse(str(line) not in own[rank], f"rank {rank} it is; line {line} is in none of its main thread's calls")
    return {"the rank and its line": (rank, line)}
