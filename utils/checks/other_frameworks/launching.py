"""The answers, started for real: with mpiexec, with horovodrun, and as TensorFlow's workers.

Each worker opens the answer in a process of its own, and writes down what it did (see ``worker.py``).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from utils.checks.answers import Answer
from utils.checks.verdicts import Wrong, raised_from
from utils.launchers import namespaces, processes
from utils.launchers.frameworks import tf_roles

MARK = "COURSE_OTHER_FRAMEWORKS"  # this environment variable holds the pid of whoever started it all, and a random part
SECONDS = 250.0  # for all; five are enough on a quiet machine, and those that wait for each other are found by then
STILL = 12.0  # seconds without a sign of life from any worker, nor work for the processor: they wait for each other
MIRRORED = "the process with several replicas"
GRACE = 1.0  # seconds for the others, when one has failed
_COMMANDS = {
    "mpi": ["mpiexec", "-n", "{ranks}"],
    "horovod": ["horovodrun", "-np", "{ranks}", "--gloo", "--disable-cache", "--network-interfaces", "lo"],
    "tensorflow": [],
}
Facts = dict[str, Any]


def start(how: str, answer: Answer, names: list[str], given: Any = None) -> list[Facts]:
    """Run an answer with a launcher.

    Args:
        how: "mpi", "horovod" or "tensorflow".
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
        program.write_text(f"from utils.checks.other_frameworks import worker\n\nworker.{how}()\n", encoding="utf-8")
        Path(folder, "answer.json").write_text(json.dumps([answer.name, answer.to_json()]), encoding="utf-8")
        Path(folder, "given.json").write_text(json.dumps(given), encoding="utf-8")
        command = [part.format(ranks=len(names)) for part in _COMMANDS[how]]
        ends, still = _watch([*command, sys.executable, str(program), folder], Path(folder), names)
        said = Path(folder, "said").read_text(encoding="utf-8", errors="replace")
    for end in ends.values():  # the first to fail comes first: others often fail because of it
        if outcome := end.get("outcome"):
            raise raised_from(outcome)
    missing = [name for name in names if name not in ends]
    if missing and still:
        back = f"; returned: {', '.join(sorted(ends))}" if ends else ""
        raise Wrong(
            f"nobody moves any more, for {' and '.join(missing)} wait{'s' * (len(missing) == 1)} in a collective "
            f"that not all workers call{back}"
        )
    if missing:
        last = [line for line in said.splitlines() if line.strip()][-5:]
        raise Wrong(f"{answer.name} ended its process in {' and '.join(missing)}", details="\n".join(last))
    return [ends[name]["facts"] for name in names]


def _watch(command: list[str], folder: Path, names: list[str]) -> tuple[dict[str, Any], bool]:
    """Start it, wait until all workers have written their ends, none moves, or it is over; then kill what is left.

    Returns:
        What the workers have written, by name; whether those that have not stood still.
    """
    mark, environment = processes.new_mark(), tf_roles.environment(folder)
    with (
        # TensorFlow and the launchers listen on all network cards: let these be their own
        namespaces.private_network(command) as here,
        open(folder / "said", "wb") as output,
        processes.launched(here, MARK, mark, environment, output) as launcher,
    ):
        end, still = time.monotonic() + SECONDS, False
        work = processes.Activity(MARK, mark)
        while time.monotonic() < end and launcher.poll() is None and not still:
            ends = _ends(folder)
            if len(ends) == len(names):
                break
            if any("outcome" in one for one in ends.values()):
                end = min(end, time.monotonic() + GRACE)
            still = min(_last_sign(folder, len(names)), work.seconds_ago()) > STILL
            time.sleep(0.02)
        still = still or time.monotonic() >= end
    return _ends(folder), still


def _ends(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("end.*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    return {file.name.split(".")[1]: json.loads(file.read_text(encoding="utf-8")) for file in files}


def _last_sign(folder: Path, workers: int) -> float:
    """Seconds since a worker has read data, begun or ended; 0 while not all have begun."""
    if len(list(folder.glob("begun.*"))) < workers:
        return 0.0
    signs = [path.stat().st_mtime for kind in ("begun", "beat", "end") for path in folder.glob(f"{kind}.*")]
    return time.time() - max(signs)
