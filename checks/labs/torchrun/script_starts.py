"""The script, started for real: a file that calls ``main``, two workers of torchrun, their exit codes and lines."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from checks.engine.answers import Answer
from checks.engine.verdicts import Wrong
from lessons.launchers import torchrun

SECONDS, STILL = 250, 15  # until it is ended, and so long if no process of torchrun computes


def start(main: Answer) -> None:
    """Start ``main`` with the real torchrun, on one node with two workers.

    Raises:
        Wrong: a worker fails, never ends, or prints what it should not; nothing is saved.
    """
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        program = Path(folder, "train.py")
        program.write_text("from checks.labs.torchrun.script_starts import worker\n\nworker()\n", encoding="utf-8")
        Path(folder, "answer.json").write_text(json.dumps(main.to_json()), encoding="utf-8")
        try:
            ended = torchrun.run_agents(program, folder, nodes=1, per_node=2, timeout=SECONDS, still=STILL)
        except torchrun.AgentsFailed as failure:
            first, *more = str(failure).splitlines()
            raise Wrong(f"started with torchrun on 2 ranks: {first}", details="\n".join(more)) from None
        lines = {worker.rank: len(worker.output.splitlines()) for worker in ended.workers}
        if lines != {0: 8, 1: 0}:
            words = "started with torchrun on 2 ranks, rank 0 alone prints a line for each step"
            raise Wrong(words, measured=str(lines), expected="{0: 8, 1: 0}")
        if not Path(folder, "model.pt").exists():
            raise Wrong("started with torchrun on 2 ranks, nothing is saved at task.path")


def worker() -> None:
    """In a worker of torchrun: run the answer that lies in the folder."""
    from checks.engine.inside import open_answer
    from checks.labs.torchrun.training_task import Task
    from utils.training.exit import leave

    folder = sys.argv[1]
    answer = Answer.from_json("main", json.loads(Path(folder, "answer.json").read_text(encoding="utf-8")))
    open_answer(answer.name, answer.payload, answer.sources).function(Task(folder, int(os.environ["LOCAL_WORLD_SIZE"])))
    leave()
