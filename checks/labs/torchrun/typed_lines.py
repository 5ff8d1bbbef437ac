"""Check of ``torchrun_line``: bash types it on every node of a job, and torchrun is really started."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from checks.engine import Reference
from checks.engine.processes import run
from checks.engine.verdicts import Wrong
from lessons.launchers import processes
from utils.ranks.ports import free_ports

OFFICIAL = Reference("torchrun", "torchrun_line")
MARK = "COURSE_TYPED"
SECONDS, STILL, GRACE = 250, 15, 5  # until all is ended; if nothing computes; for the others when one has failed
WORDS = ["--folder", "runs/3 b", "--nnodes=9"]  # of the program
_PROGRAM = """import json, os, pathlib, sys, time
names = "NODE", "TORCHELASTIC_RESTART_COUNT", "LOCAL_RANK", "RANK", "WORLD_SIZE"
told, folder = [int(os.environ[name]) for name in names], pathlib.Path(__file__).parent
(folder / f"{os.getpid()}.new").write_text(json.dumps([told, sys.argv[1:]]))
(folder / f"{os.getpid()}.new").rename(folder / f"{os.getpid()}.json")
if os.environ["FAILS"] == "True" and told[1] == 0:
    for _ in range(600):  # until all have said who they are
        if len(list(folder.glob("*.json"))) < told[4]:
            time.sleep(0.05)
    sys.exit(told[2] == 0)
"""


def start(torchrun_line: Any) -> dict[str, Any]:
    """Type what ``torchrun_line`` returns: on two nodes, and on one where a worker fails in the first attempt.

    Raises:
        Wrong: torchrun does not take it, the agents do not meet, or the workers are not who they should be.
    """
    text = run(torchrun_line)
    if not isinstance(text, str) or not text.strip():
        raise Wrong("torchrun_line returns what you would type, as one text", measured=str(text)[:100])
    for nodes, gpus, fails in ((2, 2, False), (1, 3, True)):
        _launch(text, nodes, gpus, fails)
    if "PORT" not in text:
        raise Wrong(
            "the agents have met at torchrun's usual port, where any other job on this node would meet them: $PORT"
        )
    return {"typed on 2 nodes": "4 workers", "typed on 1 node": "3 workers, started twice"}


def _launch(text: str, nodes: int, gpus: int, fails: bool) -> None:
    where = f"typed on {nodes} node{'s' * (nodes > 1)} with {gpus} GPUs{' each' * (nodes > 1)}"
    with tempfile.TemporaryDirectory(prefix="check-") as folder, contextlib.ExitStack() as stack:
        program = Path(folder, "train.py")
        program.write_text(_PROGRAM, encoding="utf-8")
        (port,), mark = free_ports(1), processes.new_mark()
        job = {"NODES": nodes, "GPUS": gpus, "FIRST": "127.0.0.1", "PORT": port, "FAILS": fails, "OMP_NUM_THREADS": 1}
        started = {}
        for node in range(nodes):
            env = processes.clean_environment() | {name: str(value) for name, value in (job | {"NODE": node}).items()}
            log = stack.enter_context(open(Path(folder, f"{node}.log"), "wb"))
            command = ["bash", "-c", text, "bash", str(program), *WORDS]
            started[node] = stack.enter_context(processes.launched(command, MARK, mark, env, log))
        activity = processes.Activity(MARK, mark)
        in_time = processes.watch(started, started, SECONDS, GRACE, lambda: activity.seconds_ago() > STILL)
        codes = [started[node].poll() for node in range(nodes)]
        workers = sorted(json.loads(file.read_text()) for file in Path(folder).glob("*.json"))
        logs = [processes.read(Path(folder, f"{node}.log")).replace(f"{folder}/", "") for node in range(nodes)]
    _judge(where, nodes, gpus, fails, codes if in_time else [None] * nodes, workers, logs)


def _judge(
    where: str, nodes: int, gpus: int, fails: bool, codes: list[int | None], workers: list[Any], logs: list[str]
) -> None:
    """The main fault first: nothing starts; they do not meet; too few or other workers; what the program is given."""
    first = [told for told, _ in workers if told[1] == 0]  # of the first attempt
    for node in range(nodes):
        if codes[node] and not any(told[0] == node for told in first):
            said = (logs[node].strip().splitlines() or ["nothing was said"])[-1]
            if "EADDRINUSE" in said:
                said = f"it opens the store, as node 0 has done. So who is it? ({said[-60:]})"
            raise Wrong(f"{where}: on node {node} nothing is started: {said}", details=processes.tail(logs[node]))
    if len({told[0] for told in first}) < nodes:
        words = "the agents do not meet. All need the same address and port, and each says which node it is"
        if nodes == 1:
            words = "torchrun waits for more nodes than there are"
        raise Wrong(f"{where}: {words}", details=processes.tail(logs[0]))
    worlds = sorted({told[4] for told in first})
    if worlds != [nodes * gpus]:
        words = f"all workers of all nodes are one world: WORLD_SIZE is $NODES times $GPUS, {nodes * gpus}"
        raise Wrong(f"{where}: {words}", measured=str(worlds))
    places = [sorted(told[2] for told in first if told[0] == node) for node in range(nodes)]
    if places != [list(range(gpus))] * nodes or sorted(told[3] for told in first) != list(range(nodes * gpus)):
        words = "each node starts a worker for each of its GPUs, and each has a rank of its own"
        raise Wrong(f"{where}: {words}", measured=f"{len(first)} workers, local ranks {places}")
    given = [words for _, words in workers if words != WORDS]
    if given:
        words = 'the program gets its options as they are, each word for itself: "$@"'
        raise Wrong(f"{where}: {words}", measured=str(given[0]), expected=str(WORDS))
    again = [told for told, _ in workers if told[1] == 1]
    if fails and len(again) < gpus:
        raise Wrong(f"{where}: a worker fails in the first attempt, and nothing is started anew: --max-restarts")
    if any(codes) or None in codes:
        bad = next(node for node in range(nodes) if codes[node] != 0)
        raise Wrong(f"{where}: the workers have ended well, and what was typed on node {bad} has not",
                    measured=f"exit code {codes[bad]}", details=processes.tail(logs[bad]))  # fmt: skip
