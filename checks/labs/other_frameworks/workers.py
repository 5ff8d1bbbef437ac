"""Workers that mpiexec, horovodrun or a process with TensorFlow start. They are ranks of torch too: so a judge compares
what they see."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from checks.engine import printed
from checks.engine.inside import run_in_rank
from checks.engine.plain import from_bytes
from checks.engine.verdicts import Wrong, raised_from
from lessons.launchers import processes, warm_process

LAUNCHERS = {
    "mpi": "mpiexec -n {}",
    "horovod": "horovodrun -np {} --gloo --disable-cache --network-interfaces lo",
    "tensorflow": "",
}
MARK = "COURSE_OTHER_FRAMEWORKS"  # this environment variable tells the workers of a check from other processes
GRACE = 1.0  # seconds for the other workers, when one has failed


def run(launcher: str, function: Any, *arguments: Any, ranks: int, timeout: float) -> list[Any]:
    """What ``checks.engine.processes.run`` does, in workers of a launcher, on a network that nobody else can reach.

    Raises:
        Wrong: a worker failed, or did not come to its end.
        NotStarted: the answer is not written yet.
    """
    with tempfile.TemporaryDirectory(prefix="check-") as name, warm_process.one("torch") as warm:
        folder, environment = Path(name), warm_process.environment(name) | {"GLOO_SOCKET_IFNAME": "lo"}
        (folder / "work").write_bytes(cloudpickle.dumps((function, arguments)))
        command = [*LAUNCHERS[launcher].format(ranks).split(), str(warm.python), __file__, name, str(ranks)]
        with (
            open(folder / "said", "wb") as said,
            processes.launched(warm.inside(command), MARK, processes.new_mark(), environment, said) as launched,
        ):
            late = _wait(launched, folder, ranks, time.monotonic() + timeout)
        printed.show(printed.left(folder, ranks))
        failed = sorted(folder.glob("outcome.*[0-9]"), key=lambda file: file.stat().st_mtime_ns)
        if failed:
            raise raised_from(json.loads(failed[0].read_text(encoding="utf-8")))
        if late:
            words = "does each worker call the same collectives, and does each loop end?"
            raise Wrong(f"not finished after {timeout:.0f} s: {words}")
        ends = [folder / f"result.{rank}" for rank in range(ranks)]
        if missing := [f"worker {rank}" for rank, file in enumerate(ends) if not file.exists()]:
            last = (folder / "said").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
            raise Wrong(f"your function ended its process in {' and '.join(missing)}", details="\n".join(last))
        return [from_bytes(file.read_bytes()) for file in ends]


def _wait(launched: Any, folder: Path, ranks: int, end: float) -> bool:
    """Until the launcher or all workers have ended; whether the time was over before."""
    while launched.poll() is None and len([*folder.glob("result.*[0-9]")]) < ranks:
        if time.monotonic() > end:
            return True
        if any(folder.glob("outcome.*[0-9]")):
            end = min(end, time.monotonic() + GRACE)
        time.sleep(0.02)
    return False


def work(folder: Path, ranks: int, rank: int) -> None:
    """In a worker: call the function and write down its result, or why there is none."""
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks)
    result = run_in_rank((folder / "work").read_bytes(), str(folder), watched=False)
    (folder / "new").with_suffix(f".{rank}").write_bytes(result)
    os.replace(folder / f"new.{rank}", folder / f"result.{rank}")


def copies(folder: Path, ranks: int) -> None:
    """TensorFlow's import takes longest: it is done once, and copies of this process are the workers."""
    import tensorflow  # noqa: F401

    for rank in range(ranks):
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                work(folder, ranks, rank)
            os._exit(0)
    for _ in range(ranks):
        os.wait()


if __name__ == "__main__":
    place, count = Path(sys.argv[1]), int(sys.argv[2])
    number = os.environ.get("PMI_RANK") or os.environ.get("HOROVOD_RANK")
    copies(place, count) if number is None else work(place, count, int(number))
