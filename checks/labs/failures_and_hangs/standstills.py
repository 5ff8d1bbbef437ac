"""Check of ``held_up_by``: stacks of all ranks, in the form that torch 2.13 and Python 3.11 have shown, are read."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, leaves, refuse
from checks.engine.refusing import named

PROGRAM, PYTHON = "/course/train.py", "/usr/lib/python3.11"
TORCH = f"{PYTHON}/dist-packages/torch"  # (as on Debian)
WAITS = "distributed_c10d|_engine_run_backward|_pre_forward"
OFFICIAL = Reference("failures_and_hangs", "held_up_by", {
    "whoever waits in a line of its own holds up the others too: yours looks only for ranks that do not wait":
        {"if place != usual": "if False"},
})  # fmt: skip
KINDS = ("busy", "busy in a library", "elsewhere", "alike")
Frame = tuple[str, int, str]  # innermost first, in lists of them


def _in(file: str, *calls: tuple[int, str]) -> list[Frame]:
    return [(f"{file}.py", line, name) for line, name in calls]


LOGGED = _in(f"{TORCH}/distributed/c10d_logger", (83, "wrapper"))
CALLS = (3252, "all_reduce"), (5356, "barrier"), (3151, "broadcast"), (4287, "all_gather")
WAITING = [_in(f"{TORCH}/distributed/distributed_c10d", call) + LOGGED for call in CALLS]
BACKWARD = [*_in(f"{TORCH}/autograd/graph", (979, "_engine_run_backward")),
            *_in(f"{TORCH}/autograd/__init__", (395, "backward")),
            *_in(f"{TORCH}/_tensor", (623, "backward"))]  # fmt: skip
FORWARD = [*_in(f"{TORCH}/nn/parallel/distributed", (2363, "_distributed_broadcast_coalesced"),
                (2429, "_sync_module_buffers"), (1782, "_pre_forward"), (1886, "forward")),
           *_in(f"{TORCH}/nn/modules/module", (1789, "_call_impl"), (1778, "_wrapped_call_impl"))]  # fmt: skip
IN_LIBRARIES = [
    [*_in(f"{PYTHON}/selectors", (415, "select")), *_in(f"{PYTHON}/multiprocessing/connection", (947, "wait")),
     *_in(f"{TORCH}/utils/data/dataloader", (1291, "_try_get_data"), (725, "__next__"))],
    [*_in(f"{TORCH}/distributed/checkpoint/filesystem", (764, "write_data")),
     *_in(f"{TORCH}/distributed/checkpoint/state_dict_saver", (170, "save"))],
    _in(f"{TORCH}/serialization", (828, "__exit__"), (1002, "save")),
    _in(f"{PYTHON}/subprocess", (1209, "communicate"), (550, "run")),
]  # fmt: skip
STARTED = _in(f"{PYTHON}/threading", (982, "run"), (1045, "_bootstrap_inner"), (1002, "_bootstrap"))


def draw(rng: random.Random, turn: int) -> dict[str, Any]:
    kind, again = KINDS[turn % len(KINDS)], turn // len(KINDS)
    world = 2 if kind != "elsewhere" and again % 2 else rng.randint(3, 8)  # (of two, none is "elsewhere")
    bad = None if kind == "alike" else (0, world - 1, rng.randrange(world))[again // 2 % 3]
    lines = sorted(rng.sample((*range(5, 10), *range(15, 50), *range(80, 140)), 6))  # of one to three digits
    usual, odd = rng.sample(lines[2:4], 2)
    wait, other = rng.sample([*WAITING, BACKWARD, FORWARD], 2)
    stacks = []
    for rank in range(world):
        calls = [*wait, (PROGRAM, usual, "train")]
        if rank == bad and kind == "elsewhere":
            calls = [*(wait if again % 2 else other), (PROGRAM, odd, "train")]
        elif rank == bad:
            calls = [(PROGRAM, lines[1], "load")] * rng.randint(0, 1) + [(PROGRAM, odd, "train")]
            calls = (IN_LIBRARIES[again % len(IN_LIBRARIES)] if kind == "busy in a library" else []) + calls
        calls += [(PROGRAM, lines[4], "main"), (PROGRAM, lines[5], "<module>")]
        others = [  # a checkpoint that is written in the background has a group of its own
            [*WAITING[1], (PROGRAM, lines[1], "write"), *STARTED], [(PROGRAM, lines[0], "beat"), *STARTED],
            [*_in(f"{PYTHON}/threading", (331, "wait"), (629, "wait")), *STARTED[1:]],
        ]  # fmt: skip
        others = others[: 1 + again % 3] if rank == bad else rng.sample(others, rng.randint(0, 3))
        parts = [_part(rng, "Thread", one) for one in others] + [_part(rng, "Current thread", calls)]
        stacks.append("\n".join(parts))
    return {"launch": f"check.drawn_stacks({turn})", "stacks": stacks}


def _part(rng: random.Random, head: str, frames: list[Frame]) -> str:
    rows = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    return "\n".join([f"{head} 0x{rng.randrange(16**9, 16**10):016x} (most recent call first):", *rows, ""])


def play(case: dict[str, Any], held_up_by: Callable[..., Any]) -> dict[str, Any]:
    with leaves(stacks=case["stacks"]):
        result = held_up_by(case["stacks"])
    if result is None:
        return {"the rank and its line": None}
    rank, line = named(result, "two", ("rank", "line")).values()
    mains = [stack.partition("Current thread")[2] for stack in case["stacks"]]
    own = [re.findall(r'train\.py", line (\d+)', main) for main in mains]
    places, waits = [lines[0] for lines in own], [bool(re.search(WAITS, main)) for main in mains]
    refuse(rank not in range(len(places)), f"there is no rank {rank}")
    refuse(len(set(places)) == 1, "all ranks wait in the same line, and none of them holds up the others: return None")
    refuse(places.count(places[rank]) > 1, f"rank {rank} waits where other ranks wait too: it is held up itself")
    refuse(waits[rank] and not all(waits), f"rank {rank} waits, and another one is in no collective: that one is late")
    words = f"rank {rank} it is; line {line} has called what is going on in another line"
    refuse(str(line) in own[rank][1:], words)
    words = f"rank {rank} it is; line {line} of train.py is in none of its main thread's calls: others do not train"
    refuse(str(line) not in own[rank], words)
    return {"the rank and its line": (rank, line)}
