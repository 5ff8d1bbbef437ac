"""A line for torchrun, read as torchrun reads it; and typed: on two nodes, which are addresses of this machine."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import socket
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks.sandbox import run
from checks.verdicts import Wrong
from lessons.launchers import torchrun

WORKERS = 2
SECONDS, STILL = 250, 15
PROGRAM = ["train.py", "--folder", "runs/3 b", "--nnodes=9"]
_WRITES_DOWN = """import json, os, sys
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump([*(os.environ[name] for name in names), *sys.argv[2:]], file)
"""


def read(words: Sequence[str]) -> Namespace:
    """A line as torchrun itself understands it.

    Raises:
        ValueError: it does not.
    """
    from torch.distributed import run

    start = _first_option(words)
    if not start:
        raise ValueError("the line begins with the word torchrun")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            options = _parser().parse_args(list(words[start:]))
            options.least, options.most = run.parse_min_max_nnodes(options.nnodes)
            options.conf = run._parse_rendezvous_config(options.rdzv_conf)
    except SystemExit:
        raise ValueError(said.getvalue().strip().rpartition("error: ")[2] or "it only asks for help") from None
    except Exception as error:
        raise ValueError(str(error)) from None
    options.endpoint = run.get_rdzv_endpoint(options)
    options.words = list(words)
    return options


def _first_option(words: Sequence[str]) -> int:
    """Its place: behind ``torchrun``, or ``python -m torch.distributed.run``, which may have options of its own."""
    if Path(words[0]).name == "torchrun":
        return 1
    return next((n + 2 for n in range(1, 4) if list(words[n : n + 2]) == ["-m", "torch.distributed.run"]), 0)


@functools.cache
def _parser() -> ArgumentParser:
    from torch.distributed import run

    return run.get_args_parser()


def environment(case: dict[str, Any], node: int, job: int, restarts: int = 0) -> dict[str, str]:
    """What Slurm tells the program on a node."""
    count, gpus = len(case["nodes"]), case["GPUs"]
    told = {"JOB_ID": job, "JOB_NAME": "train", "JOB_NODELIST": case["SLURM_JOB_NODELIST"], "JOB_NUM_NODES": count,
            "NTASKS": count, "NODEID": node, "PROCID": node, "LOCALID": 0, "GPUS_ON_NODE": gpus,
            "CPUS_ON_NODE": 16 * gpus} | ({"RESTART_COUNT": restarts} if restarts else {})  # fmt: skip
    texts = {f"SLURM_{name}": str(value) for name, value in told.items()}
    return texts | {"SLURMD_NODENAME": case["nodes"][node]}


def type_on_two_nodes(torchrun_line: Any) -> None:
    """Type the lines of a job, and see what the workers of both nodes are told.

    Raises:
        Wrong: nothing was started, or they are not who they should be.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        job = {"SLURM_JOB_NODELIST": "127.0.0.[1,3]", "nodes": ["127.0.0.1", "127.0.0.3"], "GPUs": WORKERS}
        slurms = [environment(job, node, probe.getsockname()[1]) for node in range(2)]
    lines = [run(torchrun_line, slurm, PROGRAM) for slurm in slurms]
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        program = Path(folder, "train.py")
        program.write_text(_WRITES_DOWN, encoding="utf-8")
        typed = [
            ["torchrun", *one[_first_option(one) : -len(PROGRAM)], str(program), folder, *PROGRAM[1:]] for one in lines
        ]
        kind = read(lines[0]).rdzv_backend
        with torchrun.agents(program, nodes=2, per_node=WORKERS, rendezvous=kind) as agents:
            agents.command = typed.__getitem__
            for node in range(2):
                agents.start(node)
            try:
                agents.wait(SECONDS, still=STILL)
            except torchrun.AgentsFailed as failure:
                raise Wrong(f"typed on two nodes: {str(failure).splitlines()[0]}") from None
        found = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(2 * WORKERS)]
    expected = [[str(rank), str(rank % 2), "4", str(rank // 2), *PROGRAM[1:]] for rank in range(2 * WORKERS)]
    if found != expected:
        raise Wrong("typed on two nodes, the workers are not who they should be", measured=str(found))
