"""Stacks to read: what faulthandler has written in every rank of a launch that stands still.

The frames are those that torch 2.13 and Python 3.11 have shown; ranks, lines, threads and faults are drawn.
"""

from __future__ import annotations

import random
from typing import Any

Launch = dict[str, Any]  # "stacks", who is to blame and where ("right": a pair, or None), "kind"
Frame = tuple[str, int, str]
PROGRAM, PYTHON = "/course/train.py", "/usr/lib/python3.11"
TORCH = f"{PYTHON}/dist-packages/torch"  # (as on Debian)
KINDS = ("busy", "busy in a library", "elsewhere", "alike")
OF_EACH = 8
COLLECTIVES = {"all_reduce": 3252, "barrier": 5356, "broadcast": 3151, "all_gather": 4287}
BEGUN = [(f"{PYTHON}/threading.py", line, name) for line, name in ((1045, "_bootstrap_inner"), (1002, "_bootstrap"))]
IN_LIBRARIES: list[list[Frame]] = [  # innermost first
    [
        (f"{PYTHON}/selectors.py", 415, "select"),
        (f"{PYTHON}/multiprocessing/connection.py", 947, "wait"),
        (f"{PYTHON}/multiprocessing/queues.py", 113, "get"),
        (f"{TORCH}/utils/data/dataloader.py", 1291, "_try_get_data"),
        (f"{TORCH}/utils/data/dataloader.py", 725, "__next__"),
    ],
    [
        (f"{TORCH}/distributed/checkpoint/filesystem.py", 764, "write_data"),
        (f"{TORCH}/distributed/checkpoint/state_dict_saver.py", 170, "save"),
    ],
    [
        (f"{TORCH}/serialization.py", 828, "__exit__"),
        (f"{TORCH}/serialization.py", 1002, "save"),
    ],
    [
        (f"{PYTHON}/subprocess.py", 1209, "communicate"),
        (f"{PYTHON}/subprocess.py", 550, "run"),
    ],
]


def drawn(rng: random.Random) -> list[Launch]:
    launches = [_launch(rng, kind, turn) for turn in range(OF_EACH) for kind in KINDS]
    rng.shuffle(launches)
    return launches


def _launch(rng: random.Random, kind: str, turn: int) -> Launch:
    busy = kind.startswith("busy")
    world = 2 if kind != "elsewhere" and turn % 2 else rng.randint(3, 8)  # (of two, none is "elsewhere")
    bad = turn // 2 % 2 if world == 2 else (0, world - 1)[turn] if turn < 2 else rng.randrange(world)
    lines = sorted(rng.sample((*range(5, 10), *range(15, 50), *range(80, 140)), 7))  # of one to three digits
    beat, load, *of_train, main, module = lines
    usual, other, third = rng.sample(of_train, 3)
    threads = {"beat": beat, "write": load}
    stacks, right, common = [], None, rng.choice(list(COLLECTIVES))
    for rank in range(world):
        collective, at = common, usual
        calls = [(PROGRAM, at, "train")]
        if rank == bad and kind == "elsewhere":
            collective = common if turn % 2 else rng.choice(list(COLLECTIVES))
            at = rng.choice((other, third))
            calls = [(PROGRAM, at, "train")]
        waits = [
            (f"{TORCH}/distributed/distributed_c10d.py", COLLECTIVES[collective], collective),
            (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
        ]
        if rank == bad and busy:
            inside = rng.random() < 0.5
            at = load if inside else third
            calls = [(PROGRAM, load, "load"), (PROGRAM, third, "train")] if inside else [(PROGRAM, third, "train")]
            waits = IN_LIBRARIES[turn % len(IN_LIBRARIES)] if kind == "busy in a library" else []
        if rank == bad and kind != "alike":
            right = [bad, at]
        frames = [*waits, *calls, (PROGRAM, main, "main"), (PROGRAM, module, "<module>")]
        stacks.append(_text(rng, frames, threads, always="write" if busy and rank == bad and world == 2 else ""))
    return {"stacks": stacks, "right": right, "kind": kind}


def _text(rng: random.Random, frames: list[Frame], lines: dict[str, int], always: str) -> str:
    """Other threads first, the main one last: so does faulthandler, from the newest to the oldest.

    ``always``: a thread that is there in any case: a collective in it is not one in the main thread.
    """
    others = {
        "beat": [(PROGRAM, lines["beat"], "beat"), (f"{PYTHON}/threading.py", 982, "run"), *BEGUN],
        "write": [  # a checkpoint in the background, whose threads have a group of their own
            (f"{TORCH}/distributed/distributed_c10d.py", COLLECTIVES["barrier"], "barrier"),
            (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
            (PROGRAM, lines["write"], "write"),
            (f"{PYTHON}/threading.py", 982, "run"),
            *BEGUN,
        ],
        "idle": [(f"{PYTHON}/threading.py", 331, "wait"), (f"{PYTHON}/threading.py", 629, "wait"), *BEGUN],
    }
    chosen = rng.sample(list(others), rng.randint(0, 3))
    chosen += [always] if always and always not in chosen else []
    parts = [_thread(rng, "Thread", others[name]) for name in chosen]
    return "\n".join([*parts, _thread(rng, "Current thread", frames)])


def _thread(rng: random.Random, head: str, frames: list[Frame]) -> str:
    rows = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    return "\n".join([f"{head} 0x{rng.randrange(16**9, 16**10):016x} (most recent call first):", *rows, ""])
