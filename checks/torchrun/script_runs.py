"""The script, started: on ranks of the course and with the real torchrun; what it did there, as plain facts.

The course's ranks start in milliseconds and show most mistakes. What they cannot show is a real launch: an agent,
workers that begin with nothing but their environment, exit codes.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from checks.answers import Answer
from checks.contracts import Case, Facts
from checks.sandbox import require_returned, run, run_to_the_ends
from checks.verdicts import Wrong
from lessons.launchers import torchrun

IMAGES = 1_440  # that there are to train on
SECONDS = 250  # ranks that wait for each other are found long before, and those that compute for ever too
STILL = 15  # seconds in which no process of torchrun computes
# What DistributedDataParallel and optimizers import takes a second of each rank.
_HEAVY = {b"DistributedDataParallel": "torch._dynamo", b"optim": "torch._dynamo"}
_PROGRAM = """from checks.torchrun.worker import worker

worker()
"""


def _alone(*arguments: Any) -> Facts:
    from checks.torchrun.worker import alone  # imports torch, which the notebook's kernel need not wait for

    return alone(*arguments)


def _on_rank(*arguments: Any) -> Facts:
    from checks.torchrun.worker import on_rank

    return on_rank(*arguments)


def draw(rng: random.Random) -> list[Case]:
    """The launches of another training of the same kind, the last one with the real torchrun.

    The batch can be shared by one to six ranks.
    """
    batch = 12 * rng.randint(1, 4)
    task = {
        "samples": batch * rng.randint(6, 20),
        "batch": batch,
        "epochs": rng.randint(2, 3),
        "lr": rng.choice((0.2, 0.3, 0.5)),
        "seed": rng.getrandbits(30),
    }
    other = rng.choice(((1, 2), (1, 3), (1, 4), (2, 3), (3, 2)))
    shapes = [*((shape, "the course's ranks") for shape in ((2, 2), (1, 1), (3, 1), other)), ((1, 2), "torchrun")]
    return [
        {"ranks": nodes * per_node, "nodes": nodes, "per node": per_node, "started by": who} | task
        for (nodes, per_node), who in shapes
    ]


def reference(cases: list[Case]) -> Facts:
    """What the script does in one process; and what it would print if so many ranks added up their gradients."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        return run(_alone, folder, sorted({case["ranks"] for case in cases} - {1}), cases[0], timeout=SECONDS)


def started(main: Answer, case: Case) -> list[Facts]:
    """``main(task)`` in a case: what each rank did.

    Raises:
        Wrong: a rank raised, died, or waits for ever.
        NotStarted: the answer says so.
    """
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        start = _under_torchrun if case["started by"] == "torchrun" else _on_ranks
        return start(main, case, folder)


def _on_ranks(main: Answer, case: Case, folder: str) -> list[Facts]:
    from utils.ranks import preload

    preload("checks.torchrun.worker", *{module for word, module in _HEAVY.items() if word in main.payload})
    how = {"ranks": case["ranks"], "nodes": case["nodes"], "timeout": SECONDS}
    ends = run_to_the_ends(_on_rank, main, folder, case["nodes"], case, **how)
    return require_returned(ends, f"With {case['nodes']} × {case['per node']} ranks they wait for ever")


def _under_torchrun(main: Answer, case: Case, folder: str) -> list[Facts]:
    program = Path(folder, "train.py")
    program.write_text(_PROGRAM, encoding="utf-8")
    Path(folder, "answer.json").write_text(json.dumps(main.to_json()), encoding="utf-8")
    Path(folder, "task.json").write_text(json.dumps(case), encoding="utf-8")
    nodes, per_node = case["nodes"], case["per node"]
    try:
        ended = torchrun.run_agents(program, folder, nodes=nodes, per_node=per_node, timeout=SECONDS, still=STILL)
    except torchrun.AgentsFailed as failure:
        first, *more = str(failure).splitlines()
        raise Wrong(f"torchrun with {nodes} × {per_node}: {first}", details="\n".join(more)) from None
    found = []
    for worker in sorted(ended.workers, key=lambda worker: worker.rank):
        file = Path(folder, f"facts.{worker.rank}")
        if not file.exists():
            raise Wrong(f"torchrun with {nodes} × {per_node}: rank {worker.rank} left before the end of main")
        found.append(json.loads(file.read_text()) | {"printed": worker.output.splitlines()})
    return found
