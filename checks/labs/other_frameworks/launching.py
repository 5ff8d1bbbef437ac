"""The answers, started for real: with horovodrun, and as TensorFlow's workers.

Each worker opens the answer in a process of its own, and writes down what it did (see ``worker.py``).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from checks.engine.answers import Answer
from checks.engine.verdicts import Wrong, raised_from
from lessons.launchers import namespaces, processes, warm_process

MARK = "COURSE_OTHER_FRAMEWORKS"  # this environment variable holds the pid of whoever started it all, and a random part
SECONDS = 250.0  # for all; five are enough on a quiet machine, and those that wait for each other are found by then
STILL = 12.0  # seconds without a sign of life from any worker, nor work for the processor: they wait for each other
ENDLESS = 60.0  # seconds of work for the processor without a sign of life: a loop without end
MIRRORED = "the process with several replicas"
GRACE = 1.0  # seconds for the others, when one has failed
_COMMANDS = {
    # (They ask each other every millisecond if not told otherwise: then workers that wait for ever look busy.)
    "horovod": "horovodrun -np {ranks} --gloo --disable-cache --network-interfaces lo --cycle-time-ms 20",
    "tensorflow": "",
}
_WAITING = "nobody moves any more, for {} wait{s} in a collective that not all workers call"
_BUSY = "{} did not come to an end: either in a collective that not all workers call, or in a loop without end"
Facts = dict[str, Any]


def start(how: str, answer: Answer, names: list[str], given: Any = None) -> list[Facts]:
    """Run an answer with a launcher.

    Args:
        how: "horovod" or "tensorflow".
        answer: the learner's function.
        names: of the workers, as ``worker`` names them.
        given: for the workers, as JSON.

    Returns:
        What each worker did, in the order of ``names``.

    Raises:
        Wrong: a worker failed, or did not come to its end.
        NotStarted: the answer is not written yet.
    """
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        program = Path(folder, "program.py")
        program.write_text(f"from checks.labs.other_frameworks import worker\n\nworker.{how}()\n", encoding="utf-8")
        Path(folder, "answer.json").write_text(json.dumps([answer.name, answer.to_json()]), encoding="utf-8")
        Path(folder, "given.json").write_text(json.dumps(given), encoding="utf-8")
        command = _COMMANDS[how].format(ranks=len(names)).split()
        ends, still = _watch([*command, sys.executable, str(program), folder], Path(folder), names)
        return _facts(folder, answer, names, ends, still)


def _facts(folder: str, answer: Answer, names: list[str], ends: dict[str, Any], still: str) -> list[Facts]:
    said = Path(folder, "said").read_text(encoding="utf-8", errors="replace")
    for end in ends.values():  # the first to fail comes first: others often fail because of it
        if outcome := end.get("outcome"):
            raise raised_from(outcome)
    missing = [name for name in names if name not in ends]
    if missing and still:
        back = f"; returned: {', '.join(sorted(ends))}" if ends else ""
        raise Wrong(still.format(" and ".join(missing), s="s" * (len(missing) == 1)) + back)
    if missing:
        last = [line for line in said.splitlines() if line.strip()][-5:]
        raise Wrong(f"{answer.name} ended its process in {' and '.join(missing)}", details="\n".join(last))
    return [ends[name]["facts"] for name in names]


def _watch(command: list[str], folder: Path, names: list[str]) -> tuple[dict[str, Any], str]:
    """Start it, wait until all workers have written their ends, none moves, or it is over; then kill what is left.

    Returns:
        What the workers have written, by name; what those have done that did not come to their end, if known.
    """
    mark, environment = processes.new_mark(), warm_process.environment(folder)
    with (
        # TensorFlow and the launchers listen on all network cards: let these be their own
        namespaces.private_network() as inside,
        open(folder / "said", "wb") as output,
        processes.launched(inside(command), MARK, mark, environment, output) as launcher,
    ):
        end, still = time.monotonic() + SECONDS, ""
        work, sign, worked = processes.Activity(MARK, mark), 0.0, 0.0
        while time.monotonic() < end and launcher.poll() is None and not still:
            ends = _ends(folder)
            if len(ends) == len(names):
                break
            if any("outcome" in one for one in ends.values()):
                end = min(end, time.monotonic() + GRACE)
            idle, last = work.seconds_ago(), _last_sign(folder, len(names))
            if last != sign or not last:
                sign, worked = last, work.worked
            silent = time.time() - sign if sign else 0.0
            if work.worked - worked > ENDLESS:
                still = _BUSY
            elif min(silent, idle) > STILL:
                still = _WAITING
            time.sleep(0.02)
        if not still and time.monotonic() >= end:
            still = _BUSY
    return _ends(folder), still


def _ends(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("end.*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    return {file.name.split(".")[1]: json.loads(file.read_text(encoding="utf-8")) for file in files}


def _last_sign(folder: Path, workers: int) -> float:
    """When a worker has last read data, begun or ended (``time.time()``); 0 while not all have begun."""
    if len(list(folder.glob("begun.*"))) < workers:
        return 0.0
    signs = [path.stat().st_mtime for kind in ("begun", "beat", "end") for path in folder.glob(f"{kind}.*")]
    return max(signs)
