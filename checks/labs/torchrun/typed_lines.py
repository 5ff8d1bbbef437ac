"""Check of ``torchrun_line``: bash types it on every node of a job, and torchrun is really started."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.processes import run
from lessons.launchers import processes
from utils.ranks.ports import free_ports

OFFICIAL = Reference("torchrun", "torchrun_line")
MARK = "COURSE_TYPED"
SECONDS, STILL, GRACE = 250, 15, 5  # until all is ended; if nothing computes; for the others when one has failed
WORDS = ["--folder", "runs/3 b", "--nnodes=9"]  # of the program
PROGRAM = """import json, os, pathlib, sys, time
names = "NODE", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"
told, note = {name: int(os.environ[name]) for name in names}, pathlib.Path(__file__).with_name(f"{os.getpid()}.new")
note.write_text(json.dumps(told | {"words": sys.argv[1:]}))
note.rename(note.with_suffix(".json"))
if os.environ["NODES"] == "1" and told["TORCHELASTIC_RESTART_COUNT"] == 0:
    for _ in range(600):  # until all have said who they are
        if len(list(note.parent.glob("*.json"))) < told["WORLD_SIZE"]:
            time.sleep(0.05)
    sys.exit(told["LOCAL_RANK"] == 0)
"""


@exercise(OFFICIAL, title="Typed on every node", minutes=25, timeout=600)
def typed(torchrun_line: Any) -> dict[str, Any]:
    """Judge ``torchrun_line()``: what it returns is typed on two nodes, and on one where a worker fails at first."""
    text = run(torchrun_line)
    refuse(not isinstance(text, str), "torchrun_line returns what you would type, as one text", measured=str(text)[:99])
    _judge(text, nodes=2, gpus=2)
    _judge(text, nodes=1, gpus=3)
    refuse("PORT" not in text, "the agents meet at torchrun's usual port, where any other job would meet them: $PORT")
    return {"typed on 2 nodes": "4 workers", "typed on 1 node": "3 workers, started twice"}


def _type(text: str, nodes: int, gpus: int) -> tuple[list[int | None], list[Any], list[str]]:
    """Type a text on each node: exit codes (None: ended from here) and logs of the nodes, and what all workers say."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder, contextlib.ExitStack() as stack:
        program, logs = Path(folder, "train.py"), [Path(folder, f"{node}.log") for node in range(nodes)]
        program.write_text(PROGRAM, encoding="utf-8")
        (port,), mark, started = free_ports(1), processes.new_mark(), {}
        for node in range(nodes):
            job = {"NODES": nodes, "NODE": node, "GPUS": gpus, "FIRST": "127.0.0.1", "PORT": port, "OMP_NUM_THREADS": 1}
            environment = processes.clean_environment() | {name: str(value) for name, value in job.items()}
            command = ["bash", "-c", text, "bash", str(program), *WORDS]
            output = stack.enter_context(open(logs[node], "wb"))
            started[node] = stack.enter_context(processes.launched(command, MARK, mark, environment, output))
        activity = processes.Activity(MARK, mark)
        in_time = processes.watch(started, started, SECONDS, GRACE, lambda: activity.seconds_ago() > STILL)
        codes = [launcher.poll() if in_time else None for launcher in started.values()]
        workers = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
        return codes, workers, [processes.read(log).replace(f"{folder}/", "") for log in logs]


def _judge(text: str, nodes: int, gpus: int) -> None:
    """The main fault first: nothing starts; they do not meet; too few or other workers; what the program is given."""
    where = f"typed on {nodes} node{'s' * (nodes > 1)} with {gpus} GPUs{' each' * (nodes > 1)}"
    codes, workers, logs = _type(text, nodes, gpus)
    first = [worker for worker in workers if worker["TORCHELASTIC_RESTART_COUNT"] == 0]
    for node in sorted({*range(nodes)} - {worker["NODE"] for worker in first}, key=lambda node: codes[node] is None):
        said = (logs[node].strip().splitlines() or ["nothing was said"])[-1]
        if codes[node] is None:
            said = "torchrun waits for others. Does each know how many nodes there are, which it is, and where to meet?"
        elif "EADDRINUSE" in said:
            said = f"it opens the store, as node 0 has done. So who is it? ({said[-60:]})"
        refuse(True, f"{where}: on node {node} nothing is started: {said}", details=processes.tail(logs[node]))
    seen = sorted((worker["NODE"], worker["LOCAL_RANK"], worker["WORLD_SIZE"]) for worker in first)
    right = [(node, local, nodes * gpus) for node in range(nodes) for local in range(gpus)]
    fault = f"{where}: each node starts a worker for each of its GPUs, and all workers of all nodes are one world"
    measured = f"{len(seen)} workers, WORLD_SIZE {', '.join(sorted({str(world) for _, _, world in seen}))}"
    refuse(seen != right, fault, measured=measured, expected=f"{len(right)} workers, WORLD_SIZE {len(right)}")
    given = next((worker["words"] for worker in workers if worker["words"] != WORDS), WORDS)
    refuse(given != WORDS, f'{where}: the program gets each word for itself: "$@"', measured=str(given))
    refuse(nodes == 1 and len(workers) < 2 * gpus, f"{where}: nothing is started anew after a failure: --max-restarts")
    for node, code in enumerate(codes):
        fault = f"{where}: the workers have ended well, and what was typed on node {node} has not"
        refuse(code != 0, fault, measured=f"exit code {code}", details=processes.tail(logs[node]))
