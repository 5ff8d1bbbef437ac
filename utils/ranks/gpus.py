"""The GPUs that ranks can use, counted through NVML: a process that asks CUDA may not fork any more."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass

import pynvml

from utils.ranks.errors import BadRequest

_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/nvhost-gpu", "/dev/dxg")  # Linux, Jetson, WSL2


@dataclass(frozen=True)
class Gpus:
    """How many GPUs ranks can use here, and what the reader should know about others ("" if nothing)."""

    count: int
    note: str = ""


def count_gpus() -> Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves and NVML knows. One that cannot be used is named in the note."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and not chosen.strip():
        return Gpus(0)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus(0, _unseen(chosen, str(error)))
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        if chosen is not None and chosen.strip().startswith("MIG-"):
            return Gpus(1, _divided("of CUDA_VISIBLE_DEVICES", chosen.strip().split(",")))
        visible = _visible(chosen, [pynvml.nvmlDeviceGetUUID(handle) for handle in handles])
        divided = [index for index in visible if _is_divided(handles[index])]
        if not divided:
            return Gpus(len(visible))
        return Gpus(1, _divided("(MIG mode is on)", [f"GPU {index}" for index in divided]))
    except pynvml.NVMLError as error:
        return Gpus(0, _unseen(chosen, str(error)))
    finally:
        pynvml.nvmlShutdown()


def choose(asked: str, world_size: int, found: Gpus) -> tuple[str, str]:
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


def _visible(chosen: str | None, uuids: list[str]) -> list[int]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES names: as CUDA does, up to the first that does not exist."""
    if chosen is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for name in map(str.strip, chosen.split(",")):
        if name.isdigit():
            fits = [int(name)] if int(name) < len(uuids) else []
        else:  # an abbreviated UUID will do
            fits = [index for index, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        if len(fits) != 1:
            break
        if fits[0] in found:
            return []  # CUDA takes one that is named twice for a mistake, and shows none
        found += fits
    return found


def _is_divided(handle: object) -> bool:
    try:
        return pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:
        return False  # most GPUs cannot be divided at all


def _divided(where: str, names: list[str]) -> str:
    return (
        f"{', '.join(names)} {where}: a divided GPU (MIG). CUDA shows a process one part of one such GPU, "
        "so one rank can use a GPU here."
    )


def _unseen(chosen: str | None, reason: str) -> str:
    """Why GPUs that seem to be there are not counted; "" where nothing speaks for a GPU."""
    files = [file for pattern in _DEVICE_FILES for file in glob.glob(pattern)]
    signs = sorted(files) or ([f"CUDA_VISIBLE_DEVICES={chosen}"] if chosen not in (None, "-1") else [])
    if not signs:
        return ""
    return (
        f"There seems to be a GPU ({', '.join(signs)}), but NVML, which counts them, does not work here ({reason}): "
        "ranks use the CPU. In a container, ask for NVIDIA_DRIVER_CAPABILITIES=compute,utility."
    )
