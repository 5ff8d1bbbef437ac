"""NVIDIA GPUs of this machine and what connects them, as the driver's management library (NVML) tells it.

Asking NVML does not touch CUDA: no memory on a GPU is taken, and the process may still fork.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

#: Classes of paths between two GPUs in the short form of ``nvidia-smi topo -m``, and in words.
_PATHS = {
    "PIX": "PCIe, one switch",
    "PXB": "PCIe, several switches",
    "PHB": "PCIe, through the processor",
    "NODE": "PCIe, through the processor",
    "SYS": "PCIe and the link between processors",
}

#: Linux, Jetson, WSL2. (There /dev/dxg stands for any maker's GPU, and Windows lends NVIDIA's driver to this folder.)
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/nvhost-gpu", "/usr/lib/wsl/lib/libcuda.so.1")


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU. Memory in bytes (None: unknown)."""

    index: int
    name: str
    memory_bytes: int | None
    driver: str


def gpus() -> tuple[Gpu, ...]:
    """All NVIDIA GPUs of this machine; none where there is no driver."""
    try:
        with _nvml() as handles:
            driver = pynvml.nvmlSystemGetDriverVersion()
            return tuple(
                Gpu(index, pynvml.nvmlDeviceGetName(handle), _memory(handle), driver)
                for index, handle in enumerate(handles)
            )
    except pynvml.NVMLError:
        return ()


def interconnect() -> dict[tuple[int, int], str]:
    """What lies between each pair of GPUs, in nvidia-smi's short form: {(0, 1): "NV18", (0, 2): "SYS", …}."""
    try:
        with _nvml() as handles:
            links = [_nvlinks(handle) for handle in handles]
            numbers = [_known(partial(_bus_id, pynvml.nvmlDeviceGetPciInfo, handle)) for handle in handles]
            pairs = {}
            for a, b in itertools.combinations(range(len(handles)), 2):
                through_switch = min(links[a][_SWITCH], links[b][_SWITCH])
                count = through_switch or links[a][numbers[b]]
                pairs[a, b] = f"NV{count}" if count else _path(handles[a], handles[b])
            return pairs
    except pynvml.NVMLError:
        return {}


def describe_interconnect(pairs: dict[tuple[int, int], str]) -> str:
    """A topology in words: "NVLink, 18 links" or a list where pairs of GPUs differ."""
    words = []
    for code in sorted(set(pairs.values())):
        name = f"NVLink, {code[2:]} links" if code.startswith("NV") else _PATHS.get(code, code)
        if name not in words:
            words.append(name)
    return "; ".join(words) or "unknown"


@dataclass(frozen=True)
class UsableGpus:
    """How many GPUs ranks can use here, and what the reader should know about others ("" if nothing)."""

    count: int
    note: str = ""


def count_gpus() -> UsableGpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves and NVML knows. One that cannot be used is named in the note."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and not chosen.strip():
        return UsableGpus(0)
    try:
        with _nvml() as handles:
            if chosen is not None and chosen.strip().startswith("MIG-"):
                return UsableGpus(1, _divided("of CUDA_VISIBLE_DEVICES", chosen.strip().split(",")))
            visible = _visible(chosen, [pynvml.nvmlDeviceGetUUID(handle) for handle in handles])
            divided = [index for index in visible if _is_divided(handles[index])]
            if not divided:
                return UsableGpus(len(visible))
            return UsableGpus(1, _divided("(MIG mode is on)", [f"GPU {index}" for index in divided]))
    except pynvml.NVMLError as error:
        return UsableGpus(0, _unseen(chosen, str(error)))


_SWITCH = "switch"


@contextmanager
def _nvml() -> Iterator[list[Any]]:
    pynvml.nvmlInit()
    try:
        yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _memory(handle: Any) -> int | None:
    return _known(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))


def _nvlinks(handle: Any) -> Counter[str]:
    """How many active NVLinks lead to whom: the PCI bus number of a GPU, or a switch."""
    found: Counter[str] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if _known(partial(pynvml.nvmlDeviceGetNvLinkState, handle, link)) != pynvml.NVML_FEATURE_ENABLED:
            continue
        kind = _known(partial(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link))
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            found[_SWITCH] += 1
        else:
            other = _known(partial(_bus_id, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            found[other or "unknown"] += 1
    return found


def _path(one: Any, other: Any) -> str:
    codes = {
        pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two GPUs on one board
        pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
        pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        pynvml.NVML_TOPOLOGY_NODE: "NODE",
        pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    return codes.get(_known(lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)), "unknown")


def _bus_id(ask: Callable[..., Any], *of: Any) -> str:
    text = ask(*of).busId
    return text.decode() if isinstance(text, bytes) else str(text)


def _known(ask: Callable[[], Any]) -> Any:
    """An answer of NVML; None where this GPU or driver cannot tell."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None


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
