"""A rank's device and its process group: made without any fixed port, and made again after a failure."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
from collections.abc import Iterator
from typing import Any

from utils.hardware.nvml import UsableGpus, count_gpus
from utils.ranks.errors import BadRequest
from utils.ranks.provider import provider

# The notebook's own time-out ends a hang with a table; the group's must not come first.
_NEVER_FIRST = datetime.timedelta(hours=12)

#: What a group is made of: ranks that have GPUs can communicate tensors of the CPU too, so a cell is the same for all.
GROUP_BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}


def choose_backend(asked: str, world_size: int) -> tuple[str, str]:
    """The backend for a world, and a note for the reader where the choice may surprise."""
    import torch

    return fitting_backend(asked, world_size, count_gpus() if torch.version.cuda is not None else UsableGpus(0))


def fitting_backend(asked: str, world_size: int, found: UsableGpus) -> tuple[str, str]:
    """The backend for a world, and a note for the reader where the choice may surprise.

    NCCL needs a GPU of its own for every rank; gloo works everywhere.

    Raises:
        BadRequest: NCCL was asked for, and there are not enough GPUs.
    """
    gpus = found.count
    have = f"this machine has {gpus or 'no'} GPU{'s' if gpus > 1 else ''} that torch can use"
    if asked == "nccl" and gpus < world_size:
        refusal = (
            f"NCCL needs a GPU for each rank: {world_size} rank{'s' if world_size != 1 else ''} were asked for, "
            f"{have}. Use --backend gloo, or at most {gpus} rank{'s' if gpus > 1 else ''}."
            if gpus
            else f"NCCL works on GPUs only, and {have}. Use --backend gloo (or leave --backend out)."
        )
        raise BadRequest(f"{refusal} {found.note}".rstrip())
    if asked == "auto" and gpus < world_size:
        few = f"{world_size} ranks run on the CPU with gloo: NCCL needs a GPU for each rank, {have}." if gpus else ""
        return "gloo", f"{few} {found.note}".strip()
    return ("nccl" if asked == "auto" else asked), ""


def take_device(backend: str, rank: int, per_node: int) -> Any:
    """The device of this rank. Under NCCL every node sees its own GPUs only, as real nodes do; on the CPU, none."""
    import torch

    if backend != "nccl":
        if torch.version.cuda is not None:  # else FSDP and meshes take GPU ``local_rank``, which may not exist
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return torch.device("cpu")
    local_rank, node = rank % per_node, rank // per_node
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if visible == [""]:
        visible = [str(index) for index in range((node + 1) * per_node)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[node * per_node : (node + 1) * per_node])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def device_lost(error: BaseException) -> bool:
    """Whether an exception says that CUDA has failed for as long as the process lives.

    CUDA's errors come late and stay: after an illegal address or a failed assertion in a kernel, every further call
    fails. Running out of memory is none of them, and after a few others (a wrong argument, say) CUDA works on.
    """
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return False
    if not isinstance(error, torch.AcceleratorError) and "CUDA error" not in str(error):
        return False
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.current_stream().query()  # asks for the state of the context, and waits for nothing
    except RuntimeError:
        return True
    return False


class Group:
    """The default process group of one rank.

    Args of the constructor: the store's path (a file that all ranks of this world share and nobody else knows), the
    backend ("gloo" or "nccl"), rank and world size, and the device of this rank.
    """

    def __init__(self, store_path: str, backend: str, rank: int, world_size: int, device: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._store = dist.FileStore(store_path, world_size)
        self.backend, self.rank, self.world_size, self.device = backend, rank, world_size, device
        self._generation = 0
        self._made_by_cell = 0
        self._newest: Any = None
        self._real_init, self._is_initialized = dist.init_process_group, dist.is_initialized
        self.real = False  # whether a cell's dist.init_process_group is torch's own, as in a process of torchrun
        dist.init_process_group = self._init_from_cell
        dist.distributed_c10d.init_process_group = self._init_from_cell

    def make(self, generation: int) -> None:
        """Make the default group; every rank calls this with the same generation."""
        self._generation = generation
        self._made_by_cell = 0
        self._init(GROUP_BACKENDS.get(self.backend, self.backend), f"generation {generation}", _NEVER_FIRST)

    def remake(self, generation: int) -> None:
        """Leave the group (and all groups made from it) and make it again."""
        if self._is_initialized():
            try:
                self._dist.destroy_process_group()
            except Exception:
                pass  # it was aborted: there is nothing left to say goodbye to
        self.make(generation)

    def alive(self) -> bool:
        return bool(self._is_initialized())

    def _init(self, backend: str, prefix: str, timeout: datetime.timedelta) -> None:
        options: dict[str, Any] = {"device_id": self.device} if self.device.type == "cuda" else {}
        self._real_init(
            backend,
            store=self._dist.PrefixStore(prefix, self._store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
            **options,
        )
        self._keep()

    def _keep(self) -> None:
        """Own the newest group until the next one is made.

        Else a DistributedDataParallel that outlives ``dist.destroy_process_group()`` is the group's last owner, and
        lets it go with the GIL held (torch 2.13, ``Reducer::~Reducer``): gloo then joins its thread, which may be
        waiting for the GIL to free the last all-reduce's tensors, and both wait for ever.
        """
        self._newest = self._dist.group.WORLD

    def _init_from_cell(self, backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        """What ``dist.init_process_group`` is in a rank, so that a program written for torchrun runs unchanged.

        The group exists already; calling this makes it again with the backend and time-out that were asked for,
        over our own store instead of MASTER_ADDR and MASTER_PORT.
        """
        if self.real:
            self._real_init(backend, *args, **kwargs)
            return self._keep()
        given = inspect.signature(self._real_init).bind(backend, *args, **kwargs).arguments
        if backend == "nccl" and self.device.type == "cpu":
            raise BadRequest(
                "These ranks are on the CPU, and NCCL works on GPUs only: use dist.init_process_group('gloo'), "
                "or leave the backend out to get what fits."
            )
        if refusal := provider().refusal(backend, self.device.type, self.backend):
            raise BadRequest(refusal)
        elsewhere = given.get("store") is not None or given.get("init_method") not in (None, "env://")
        for name, here in (("rank", self.rank), ("world_size", self.world_size)):
            if given.get(name, -1) not in (-1, here) and not elsewhere:
                raise BadRequest(
                    f"dist.init_process_group(…, {name}={given[name]}), but here {name} is {here}: leave it out, or "
                    "start as many ranks as you mean with %%ranks -n."
                )
        if self._is_initialized():
            self._dist.destroy_process_group()
        if elsewhere:
            self._real_init(backend, *args, **kwargs)
            self._keep()
            return
        self._made_by_cell += 1
        prefix = f"generation {self._generation}, made by a cell {self._made_by_cell}"
        backend = backend or GROUP_BACKENDS.get(self.backend, self.backend)
        self._init(backend, prefix, given.get("timeout") or _NEVER_FIRST)


@contextlib.contextmanager
def torchs_own() -> Iterator[None]:
    """In a rank, in the ``with`` block: ``dist.init_process_group`` reads the environment, as everywhere else."""
    import torch.distributed as dist

    group = dist.init_process_group.__self__  # type: ignore[attr-defined]  # (an answer may know it by another name)
    group.real = True
    try:
        yield
    finally:
        group.real = False


def set_environment(rank: int, world_size: int, nodes: int, port: int) -> None:
    """The environment variables that torchrun sets (torch 2.13: torch/distributed/elastic/agent)."""
    per_node = world_size // nodes
    local_rank, node_rank = rank % per_node, rank // per_node
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(per_node),
        GROUP_RANK=str(node_rank),
        GROUP_WORLD_SIZE=str(nodes),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(world_size),
        ROLE_NAME="default",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="none",
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if os.uname().sysname == "Linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif os.uname().sysname == "Darwin":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0")
