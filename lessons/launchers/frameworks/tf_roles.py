"""The processes of a TensorFlow cluster on this machine: each role started with its TF_CONFIG, watched and ended.

TensorFlow has no launcher of its own. Whoever starts the processes tells each of them, in the environment variable
``TF_CONFIG``, the addresses of all and its own place: ``{"cluster": {"worker": [...]}, "task": {"type": "worker",
"index": 0}}``. ``run("scripts/frameworks/with_multi_worker.py", folder, workers=2)`` does that with free ports of the
loopback, all processes at once, and returns how each ended and what it printed. No process is left afterwards.

TensorFlow's servers listen on all network cards and do what anybody asks of them. So the processes get a network of
their own, where the system allows it (``namespaces``): nobody else can reach them, and they reach nobody else.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

from lessons.launchers import processes, warm_process
from lessons.launchers.frameworks.results import Worker
from utils.ranks.ports import free_ports

TIMEOUT = 90.0
#: Seconds that the others get to end by themselves when one has failed; many wait for the dead one.
GRACE = 15.0
_NOISE = ("WARNING: All log messages before absl::InitializeLog", "I0000 ", "W0000 ", "E0000 ")


def run(
    script: str | Path,
    *args: object,
    workers: int = 2,
    chief: bool = False,
    ps: int = 0,
    evaluator: bool = False,
    timeout: float = TIMEOUT,
    grace: float = GRACE,
    kill: tuple[str, int, str] | None = None,
) -> list[Worker]:
    """Start a program once for each role, wait for those that end by themselves, end the others.

    Args:
        script: the program; it reads its role from ``TF_CONFIG``.
        args: its arguments.
        workers, chief, ps, evaluator: how many of each role. Where there is a chief, workers and ps are servers that
            wait for ever, so all is over when the chief (and the evaluator) have ended. ``workers=0`` and no other
            role: one process without ``TF_CONFIG``.
        timeout: seconds for everything.
        grace: seconds that the others get when one has failed.
        kill: (role, number, text): SIGKILL for this process, as soon as one of them has printed the text.

    Returns:
        One for each process: chief, workers, ps, evaluator.
    """
    counts = {"chief": int(chief), "worker": workers, "ps": ps}
    ports = iter(free_ports(sum(counts.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in counts.items() if count}
    tasks = [(role, index) for role, addresses in cluster.items() for index in range(len(addresses))]
    tasks += [("evaluator", 0)] * evaluator  # it talks to nobody, so nobody has its address
    tasks = tasks or [("worker", 0)]
    with (
        tempfile.TemporaryDirectory(prefix="tf-roles-") as folder,
        warm_process.one("tensorflow") as warm,
        contextlib.ExitStack() as stack,
    ):
        command, mark = [str(warm.python), str(Path(script).resolve()), *map(str, args)], processes.new_mark()
        logs = {(role, index): Path(folder, f"{role}-{index}.log") for role, index in tasks}
        running = {}
        for role, index in tasks:
            config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}
            here = warm_process.environment(folder) | (config if cluster else {})
            log = stack.enter_context(open(logs[role, index], "wb"))
            started = processes.launched(command, warm_process.MARK, mark, here, log)
            running[role, index] = stack.enter_context(started)

        def accident() -> bool:
            if kill and any(kill[2] in processes.read(log) for log in logs.values()):
                running[kill[:2]].kill()
            return False

        last = [task for task in tasks if not chief or task[0] in ("chief", "evaluator")]
        processes.watch(running, last, timeout, grace, accident)
        codes = {task: process.poll() for task, process in running.items()}
        said = {task: processes.read(log).splitlines() for task, log in logs.items()}
    heard = {task: [line for line in lines if not line.startswith(_NOISE)] for task, lines in said.items()}
    return [Worker(*task, "\n".join(lines), code=codes[task]) for task, lines in heard.items()]
