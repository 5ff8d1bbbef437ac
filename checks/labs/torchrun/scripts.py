"""Check of ``main``: on ranks of the course told what workers of torchrun are told, then with torchrun itself."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, judge, printed, refuse
from checks.engine.inside import Outcome
from checks.engine.plain import in_steps
from checks.engine.verdicts import Wrong
from lessons.launchers import torchrun
from utils.ranks import groups
from utils.training.data import digits

LOCAL, SHARE = "int(os.environ['LOCAL_RANK'])", "batch[rank::world_size]"
SAVE = "    if rank == 0:\n        torch.save(model.state_dict(), task.path)\n"
PRINT, BOTH = "            if rank == 0:\n", "(mean_loss, *(parameter.grad for parameter in model.parameters()))"
OFFICIAL = Reference("torchrun", "main", {
    "every rank reads all samples, so all do the same work: give each a share of the batch": {SHARE: "batch"},
    "ranks on different nodes read the same samples: the local rank is counted on each node":
        {SHARE: f"batch[{LOCAL}::world_size]"},
    "the batch of all ranks together has grown: learning rate and number of steps were chosen for the one given":
        {"order.split(task.batch)": "order.split(task.batch * world_size)"},
    "each rank takes the GPU with its local rank, not always GPU 0":
        {'task.gpu(int(os.environ["LOCAL_RANK"]))': "task.gpu(0)"},
    "gradients are added up over the ranks, not averaged":
        {"dist.ReduceOp.AVG)": "dist.ReduceOp.AVG)\n                tensor *= 1 if tensor is mean_loss else 4"},
    "the gradients are never averaged over the ranks": {BOTH: "(mean_loss,)"},
    "the loss that is printed is that of rank 0's share, not the mean of all ranks":
        {"loss.detach()": "loss.detach().clone()", BOTH: "[parameter.grad for parameter in model.parameters()]"},
    "each rank starts with weights of its own: all begin with those of seed 0":
        {"torch.manual_seed(0)": "torch.manual_seed(rank)"},
    "every rank prints: only rank 0 does": {PRINT: "            if True:\n"},
    "every rank saves: only rank 0 does": {SAVE: SAVE.replace("rank == 0", "True")},
    "a rank on each node saves: each node has a local rank 0, and only rank 0 saves":
        {SAVE: SAVE.replace("rank == 0", f"{LOCAL} == 0")},
})  # fmt: skip
CASES = [{"nodes": "one"}, {"nodes": "several"}]
LOSS = re.compile(r" loss (\d+\.\d{4})$", re.MULTILINE)
CHOSEN = "must stay as torchrun has set it: the agents have chosen address, port and numbers"
SECONDS, STILL = 250, 15  # until torchrun is ended, and so long if none of its processes computes
STARTED = """import os, pathlib, pickle, sys
from checks.labs.torchrun.scripts import Task
from utils.training.exit import leave
main = pickle.loads(pathlib.Path(sys.argv[1], "main").read_bytes())
main.function(Task(sys.argv[1], int(os.environ["LOCAL_WORLD_SIZE"])))
leave()
"""


class Task:
    """What the script finds where it runs. ``reads``: samples, call by call; ``taken``: GPUs of its node."""

    samples, batch, epochs, lr = 96, 24, 2, 0.3

    def __init__(self, folder: str, gpus: int) -> None:
        self.path, self._gpus, self._data = str(Path(folder, "model.pt")), gpus, digits()
        self.reads: list[list[int]] = []
        self.taken: list[int] = []

    def gpu(self, index: int) -> torch.device:
        """Take a GPU of this node. Here they are simulated: the device is the CPU."""
        refuse(not 0 <= index < self._gpus, f"this node has no GPU {index}: take the one with your local rank")
        self.taken.append(index)
        return torch.device("cpu")

    def read(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The images [n, 64] and labels [n] of these samples."""
        self.reads.append([int(index) for index in indices])
        return self._data.train_images[self.reads[-1]].flatten(1), self._data.train_labels[self.reads[-1]]


class _Left(Outcome):
    """The program has ended its own process."""


def play(case: dict[str, Any], main: Callable[..., Any]) -> dict[str, Any]:
    ranks = dist.get_world_size()
    nodes = 1 if case["nodes"] == "one" else 2 if ranks % 2 == 0 else ranks
    printed.here.take()
    with tempfile.TemporaryDirectory(prefix="check-") as folder:  # each rank has its own: who saves is seen
        task = Task(folder, ranks // nodes)
        left = _run_as_worker(main, task, nodes)
        state = {"nothing that torch.load can read with weights_only=True": None} if Path(task.path).exists() else {}
        with contextlib.suppress(Exception):
            state = dict(torch.load(task.path, weights_only=True))
    reads: list[Any] = [None] * ranks
    dist.all_gather_object(reads, in_steps(task.reads, task.batch // ranks))
    text = printed.here.take()
    return {
        "the GPUs that are taken": sorted({*task.taken}),
        "the number of samples that are read": sum(map(len, task.reads)),
        "the samples that all ranks read in each step": [
            sorted(itertools.chain(*shares)) for shares in itertools.zip_longest(*reads, fillvalue=())
        ],
        "the lines that are printed": LOSS.sub("", text).splitlines(),
        "the printed losses": torch.tensor([float(loss) for loss in LOSS.findall(text)]),
        "the names in what is saved": [*state],
        "the saved weights": [*state.values()],
        "whether the process group is left": left,
    }


def _run_as_worker(main: Callable[..., Any], task: Task, nodes: int) -> bool:
    """Run it where there is no group yet, and the environment is that of a worker; whether it has left its group."""
    rank, ranks, meet = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d.rendezvous
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = torch.tensor(store.port)
    dist.broadcast(port, src=0)
    dist.barrier()
    dist.destroy_process_group()

    def rendezvous(url: str, *place: int, **options: Any) -> Any:
        refuse(url != "env://", f"init_method={url!r} names a place that your program has chosen; MASTER_PORT {CHOSEN}")
        given = os.environ | dict(zip(("RANK", "WORLD_SIZE"), map(str, place), strict=False))
        for name, right in told.items():  # (-1: not given)
            refuse(given.get(name) not in (right, "-1"), f"{name} {CHOSEN}", measured=given.get(name), expected=right)
        return meet(url, *place, **options)

    with (
        groups.torchs_own(),
        mock.patch.dict(os.environ, TORCHELASTIC_USE_AGENT_STORE="True"),
        mock.patch.object(dist.distributed_c10d, "rendezvous", rendezvous),
        mock.patch.object(os, "_exit", side_effect=_Left("left")),
        mock.patch.object(atexit, "_run_exitfuncs"),
        contextlib.suppress(_Left),
    ):
        groups.set_environment(rank, ranks, nodes, int(port))
        told = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
        main(task)
    left = not dist.is_initialized()
    dist.init_process_group("gloo")  # that of the course again; until all ranks are here, the store lives
    return left


def start(main: Any) -> None:
    """Refuse a ``main`` that the real torchrun cannot start on two ranks, or that prints or saves something else."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        program = Path(folder, "train.py")
        program.write_text(STARTED, encoding="utf-8")
        Path(folder, "main").write_bytes(pickle.dumps(main))
        try:
            ended = torchrun.run_agents(program, folder, nodes=1, per_node=2, timeout=SECONDS, still=STILL)
        except torchrun.AgentsFailed as failure:
            first, *more = str(failure).splitlines()
            raise Wrong(f"started with torchrun on 2 ranks: {first}", details="\n".join(more)) from None
        lines = {worker.rank: len(worker.output.splitlines()) for worker in ended.workers}
        refuse(lines != {0: 8, 1: 0}, "with torchrun, rank 0 alone prints a line for each step", measured=str(lines))
        refuse(not Path(folder, "model.pt").exists(), "started with torchrun on 2 ranks, nothing is saved at task.path")


@exercise(OFFICIAL, title="A script for torchrun", difficulty=2, minutes=35)
def script(main: Any) -> dict[str, Any]:
    """Judge ``main(task)``: first on ranks of the course, which start quickly, then with the real torchrun."""
    found = judge(OFFICIAL, play, CASES, main, ranks=(4, 3, 1))
    start(main)
    return found | {"torchrun": "2 ranks"}
