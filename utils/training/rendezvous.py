"""How a training script joins its process group, also after torchrun has restarted its workers."""

from __future__ import annotations

import os

import torch


def init_process_group(backend: str | None = None) -> torch.device:
    """``dist.init_process_group`` for programs that torchrun may restart; call ``training.exit.leave`` at the end.

    Ranks find each other by keys in a store: each leaves its address there. With torchrun the store belongs to the
    agent, so it outlives the workers. In torch 2.13 the restarted workers use the same keys again, and one that is
    quick reads the address of a dead worker: "Connection refused", or a hang (pytorch issue 135712). So we put the
    number of the restart in front of all keys.

    That number is each agent's own, and counts failures of its workers: it differs between nodes after one of them
    has joined late, or has lost a worker while the others had none. Where this can happen (``--rdzv-backend=c10d``
    with several nodes) set ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` for torchrun: then the ranks of every start meet
    in a new store, which needs no number.

    Args:
        backend: "gloo" or "nccl"; None: NCCL if there is a GPU for every rank on this node, else gloo.

    Returns:
        The device of this rank: ``cuda:LOCAL_RANK`` with NCCL, else the CPU.

    Raises:
        RuntimeError: torchrun has not started this process.
    """
    import torch.distributed as dist

    if "LOCAL_RANK" not in os.environ:
        raise RuntimeError("LOCAL_RANK is not set: start this program with torchrun")
    local_rank, local_world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if backend is None:
        backend = "nccl" if torch.cuda.device_count() >= local_world_size else "gloo"
    device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, world_size = next(dist.rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "False":
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt_{attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    return device
