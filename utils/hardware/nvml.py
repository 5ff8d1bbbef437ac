"""NVIDIA GPUs of this machine and what connects them, as the driver's management library (NVML) tells it.

Asking NVML does not touch CUDA: no memory on a GPU is taken, and the process may still fork.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
            numbers = [_known(lambda handle=handle: _bus_id(pynvml.nvmlDeviceGetPciInfo(handle))) for handle in handles]
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
        if _known(lambda link=link: pynvml.nvmlDeviceGetNvLinkState(handle, link)) != pynvml.NVML_FEATURE_ENABLED:
            continue
        kind = _known(lambda link=link: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            found[_SWITCH] += 1
        else:
            other = _known(lambda link=link: _bus_id(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)))
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


def _bus_id(pci: Any) -> str:
    text = pci.busId
    return text.decode() if isinstance(text, bytes) else str(text)


def _known(ask: Callable[[], Any]) -> Any:
    """An answer of NVML; None where this GPU or driver cannot tell."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None
