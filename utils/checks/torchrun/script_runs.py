"""The script, started: on ranks of the course and with the real torchrun; what it did, and what the check says.

The course's ranks start in milliseconds and show most mistakes. What they cannot show is a real launch: agents,
workers that begin with nothing but their environment, exit codes.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from utils.checks.answers import Answer
from utils.checks.sandbox import require_returned, run, run_to_the_ends
from utils.checks.torchrun.script_verdicts import Facts
from utils.checks.verdicts import Wrong
from utils.launchers import torchrun

Shape = tuple[int, int]  # nodes, ranks of each
IMAGES = 1_440  # that there are to train on
SECONDS = 100  # for six processes that import torch; they need about five
_PROGRAM = """from utils.checks.torchrun.worker import worker

worker()
"""


def _alone(*arguments: Any) -> Facts:
    from utils.checks.torchrun.worker import alone  # imports torch, which the notebook's kernel need not wait for

    return alone(*arguments)


def _on_rank(*arguments: Any) -> Facts:
    from utils.checks.torchrun.worker import on_rank

    return on_rank(*arguments)


def drawn(rng: random.Random) -> dict[str, Any]:
    """Another training of the same kind. Its batch can be shared by one to six ranks."""
    batch = 12 * rng.randint(1, 4)
    return {
        "samples": batch * rng.randint(6, 20),
        "batch": batch,
        "epochs": rng.randint(2, 3),
        "lr": rng.choice((0.2, 0.3, 0.5)),
        "seed": rng.getrandbits(30),
    }


def shapes(rng: random.Random) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """On the course's ranks, and with the real torchrun."""
    return ((2, 2), (1, 1), (3, 1), rng.choice(((1, 2), (1, 3), (1, 4), (2, 3), (3, 2)))), ((2, 2),)


def reference(given: dict[str, Any], sizes: set[int]) -> Facts:
    """What the script does in one process; and what it would print if so many ranks added up their gradients."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        return run(_alone, folder, sorted(sizes - {1}), given)


def on_ranks(main: Answer, given: dict[str, Any], nodes: int, per_node: int) -> list[Facts]:
    """``main(task)`` on ranks of the course."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        ends = run_to_the_ends(_on_rank, main, folder, nodes, given, ranks=nodes * per_node, nodes=nodes)
        return require_returned(ends, f"With {nodes} × {per_node} ranks they wait for ever")


def under_torchrun(main: Answer, given: dict[str, Any], shapes: Sequence[Shape]) -> dict[Shape, list[Facts]]:
    """``main(task)`` with the real torchrun, all shapes at the same time."""
    with ThreadPoolExecutor(len(shapes)) as pool:
        started = {shape: pool.submit(_launch, main, given, *shape) for shape in shapes}
        return {shape: run.result() for shape, run in started.items()}


def _launch(main: Answer, given: dict[str, Any], nodes: int, per_node: int) -> list[Facts]:
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        program = Path(folder, "train.py")
        program.write_text(_PROGRAM, encoding="utf-8")
        Path(folder, "answer.json").write_text(json.dumps(main.to_json()), encoding="utf-8")
        Path(folder, "task.json").write_text(json.dumps(given), encoding="utf-8")
        try:
            ended = torchrun.run_agents(program, folder, nodes=nodes, per_node=per_node, timeout=SECONDS)
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
