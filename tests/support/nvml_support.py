"""A pretended NVML: the driver's library as it would answer on a machine with GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass(frozen=True)
class PretendedGpu:
    """A GPU. ``links``: where each NVLink leads, a GPU's index or "switch"; ``distances``: NVML's code of the path
    between pairs of GPUs, the two processors' link where nothing is said; ``divided``: MIG mode is on."""

    name: str
    memory_bytes: int | None
    links: Sequence[int | str] = ()
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    divided: bool = False


def pretend_nvml(monkeypatch: Any, gpus: Sequence[PretendedGpu] | None) -> None:
    """From now on NVML tells of these GPUs; None: there is no driver, and so no NVML."""

    def init() -> None:
        if gpus is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def memory(index: int) -> Any:
        if gpus[index].memory_bytes is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=gpus[index].memory_bytes)

    def link(index: int, number: int) -> int | str:
        if number >= len(gpus[index].links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpus[index].links[number]

    def kind(index: int, number: int) -> int:
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if link(index, number) == "switch" else 0

    def mig_mode(index: int) -> list[int]:
        return [int(gpus[index].divided)] * 2

    answers = {
        "nvmlInit": init,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "550.54.15",
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda index: gpus[index].name,
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}abc-def",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"0000:0{index}:00.0"),
        "nvmlDeviceGetNvLinkState": lambda index, number: int(link(index, number) is not None),
        "nvmlDeviceGetNvLinkRemoteDeviceType": kind,
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda i, n: SimpleNamespace(busId=f"0000:0{link(i, n)}:00.0"),
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: gpus[a].distances.get((a, b), pynvml.NVML_TOPOLOGY_SYSTEM),
        "nvmlDeviceGetMigMode": mig_mode,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
