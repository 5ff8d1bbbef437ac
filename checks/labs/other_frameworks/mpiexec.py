"""Workers of mpiexec for a check. They are ranks of torch too, so that the judge can compare what they see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from checks.engine.inside import run_in_rank
from checks.engine.plain import from_bytes
from checks.engine.verdicts import Wrong, raised_from
from lessons.launchers import namespaces, warm_process

GRACE = 1.0  # seconds for the other workers, when one has failed


def run(function: Any, *arguments: Any, ranks: int, timeout: float) -> list[Any]:
    """What ``checks.engine.processes.run`` does, in workers of mpiexec.

    Raises:
        Wrong: a worker failed, or did not come to its end.
        NotStarted: the answer is not written yet.
    """
    with tempfile.TemporaryDirectory(prefix="check-") as name, namespaces.private_network() as inside:
        folder = Path(name)
        (folder / "work").write_bytes(cloudpickle.dumps((function, arguments)))
        command = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "checks.labs.other_frameworks.mpiexec", name]
        environment = warm_process.environment(folder) | {"GLOO_SOCKET_IFNAME": "lo"}
        with open(folder / "said", "wb") as said:
            workers = subprocess.Popen(
                inside(command), env=environment, stdout=said, stderr=said, start_new_session=True
            )
        late, end = True, time.monotonic() + timeout
        try:
            while late and time.monotonic() < end:
                if any(folder.glob("outcome.*")):
                    end = min(end, time.monotonic() + GRACE)
                time.sleep(0.02)
                late = workers.poll() is None
        finally:  # also when the reader interrupts the check
            if late:
                os.killpg(workers.pid, signal.SIGKILL)
                workers.wait()
        failed = sorted(folder.glob("outcome.*"), key=lambda file: file.stat().st_mtime_ns)
        if failed:
            raise raised_from(json.loads(failed[0].read_text(encoding="utf-8")))
        if late:
            raise Wrong(
                f"not finished after {timeout:.0f} s: does each worker of `world` call the same, and does a loop end?"
            )
        ends = [folder / f"result.{rank}" for rank in range(ranks)]
        if missing := [f"worker {rank}" for rank, file in enumerate(ends) if not file.exists()]:
            last = (folder / "said").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
            raise Wrong(f"your function ended its process in {' and '.join(missing)}", details="\n".join(last))
        return [from_bytes(file.read_bytes()) for file in ends]


def work(folder: Path) -> None:
    """In a worker: call the function, write down its result, or why there is none."""
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size)
    payload = (folder / "work").read_bytes()
    result = run_in_rank(payload, str(folder), watched=False, seconds=0)
    (folder / f"result.{rank}").write_bytes(result)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
