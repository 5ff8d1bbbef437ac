"""Workers that mpiexec and horovodrun start. They are ranks of torch too: so a judge compares what they see."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from checks.engine import printed
from checks.engine.inside import run_in_rank
from checks.engine.plain import from_bytes
from checks.engine.verdicts import Wrong, raised_from
from lessons.launchers import processes, warm_process

MPIEXEC = "mpiexec -n {}"
LAUNCHERS = {  # TensorFlow has none of its own
    "mpi4py": MPIEXEC,
    "horovod": "horovodrun -np {} --gloo --disable-cache --network-interfaces lo",
    "tensorflow": MPIEXEC,
}
WORKERS = 3


def by(framework: str) -> dict[str, Any]:
    """What ``exercise`` is to know where workers of a framework play."""
    return {"needs": (framework,), "ranks": (WORKERS,), "timeout": 150, "run": partial(run, framework)}


def run(framework: str, function: Any, *arguments: Any, ranks: int, timeout: float) -> list[Any]:
    """What ``checks.engine.processes.run`` does, in workers of a launcher, on a network that nobody else can reach.

    Raises:
        Wrong: a worker failed, or did not come to its end.
        NotStarted: the answer is not written yet.
    """
    imported = "tensorflow" if framework == "tensorflow" else "torch"
    with tempfile.TemporaryDirectory(prefix="check-") as name, warm_process.one(imported) as warm:
        folder, environment = Path(name), warm_process.environment(name) | {"GLOO_SOCKET_IFNAME": "lo"}
        (folder / "work").write_bytes(cloudpickle.dumps((function, arguments)))
        command = [*LAUNCHERS[framework].format(ranks).split(), str(warm.python), __file__, name, str(ranks)]

        def written(what: str) -> list[Path]:
            return sorted(folder.glob(f"{what}.*[0-9]"), key=lambda file: file.stat().st_mtime_ns)

        def over() -> bool:
            return bool(written("outcome")) or len(written("result")) == ranks

        with (
            open(folder / "said", "wb") as said,
            processes.launched(
                warm.inside(command), warm_process.MARK, processes.new_mark(), environment, said
            ) as launched,
        ):
            ended = processes.watch({0: launched}, [0], timeout, stop=over)
        printed.show(printed.left(folder, ranks))
        if failed := written("outcome"):
            raise raised_from(json.loads(failed[0].read_text(encoding="utf-8")))
        if len(written("result")) < ranks:
            late = f"not finished after {timeout:.0f} s: "
            late += "does each worker call the same collectives, and does each loop end?"
            last = processes.tail(processes.read(folder / "said"))
            raise Wrong("your function ended its process" if ended else late, details=last * ended)
        return [from_bytes((folder / f"result.{rank}").read_bytes()) for rank in range(ranks)]


def work(folder: Path, ranks: int, rank: int) -> None:
    """In a worker: call the function and write down its result, or why there is none."""
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks)
    result = run_in_rank((folder / "work").read_bytes(), str(folder), watched=False)
    (folder / f"new.{rank}").write_bytes(result)
    os.replace(folder / f"new.{rank}", folder / f"result.{rank}")


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]), int(os.environ.get("PMI_RANK") or os.environ["HOROVOD_RANK"]))
