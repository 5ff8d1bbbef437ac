"""The script, started: on ranks of the course and with the real torchrun; what it did, and what the check says.

The course's ranks start in milliseconds and show most mistakes. What they cannot show is a real launch: agents,
workers that begin with nothing but their environment, exit codes.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from utils.checks.answers import Answer
from utils.checks.sandbox import require_returned, run, run_to_the_ends
from utils.checks.torchrun.script_verdicts import Facts
from utils.checks.verdicts import Wrong
from utils.launchers import torchrun

SHAPES = ((2, 2), (1, 2), (1, 1))  # nodes, ranks of each
SECONDS = 100  # for eleven processes that import torch; they need about eight
_PROGRAM = """from utils.checks.torchrun.worker import worker

worker()
"""


def _alone(*arguments: Any) -> Facts:
    from utils.checks.torchrun.worker import alone  # imports torch, which the notebook's kernel need not wait for

    return alone(*arguments)


def _on_rank(*arguments: Any) -> Facts:
    from utils.checks.torchrun.worker import on_rank

    return on_rank(*arguments)


def reference() -> Facts:
    """What the script does in one process."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        return run(_alone, folder, [nodes * per_node for nodes, per_node in SHAPES if nodes * per_node > 1])


def on_ranks(main: Answer, nodes: int, per_node: int) -> list[Facts]:
    """``main(task)`` on ranks of the course."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        ends = run_to_the_ends(_on_rank, main, folder, nodes, ranks=nodes * per_node, nodes=nodes)
        return require_returned(ends, f"With {nodes} × {per_node} ranks they wait for ever")


def under_torchrun(main: Answer) -> dict[tuple[int, int], list[Facts]]:
    """``main(task)`` with the real torchrun, all shapes at the same time."""
    with ThreadPoolExecutor(len(SHAPES)) as pool:
        started = {shape: pool.submit(_launch, main, *shape) for shape in SHAPES}
        return {shape: run.result() for shape, run in started.items()}


def _launch(main: Answer, nodes: int, per_node: int) -> list[Facts]:
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        program = Path(folder, "train.py")
        program.write_text(_PROGRAM, encoding="utf-8")
        Path(folder, "answer.json").write_text(json.dumps(main.to_json()), encoding="utf-8")
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
