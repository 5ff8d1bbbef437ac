"""Simulated GPUs for cells on ranks: what ``%%ranks --gpu`` and ``%ranks timeline`` say and take.

The magics are declared when the notebook loads them, and must not wait for torch: so this stands here, and names
modules of ``simgpu``, which import it, only where they are needed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from utils.ranks.errors import BadRequest
from utils.ranks.provider import Options, Provider

IN_RANK = "simgpu.ranks.cells"
DEVICE, BACKEND = "simgpu", "simccl"


class SimulatedGpus(Provider):
    """One simulated GPU for each rank."""

    arguments: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--gpu": {"help": "Give each rank a simulated GPU of this kind, H100 for example; device is simgpu:…"},
        "--network": {"help": 'What connects the nodes of simulated GPUs, "InfiniBand NDR" for example.'},
        "--shapes": {"help": "Simulated GPUs keep only shapes, memory and time, no numbers.", "action": "store_true"},
    }
    examples = ("%%ranks -n 8 --gpu H100 each with a simulated GPU of its own: torch's code, with time and memory",)
    commands: ClassVar[Mapping[str, str]] = {
        "timeline": "what the simulated GPUs of all ranks did in the last cell; memory: what they held",
        "memory": "",
    }

    def asked(self, options: Namespace) -> Options | None:
        if options.gpu is None:
            if options.network is not None or options.shapes:
                raise BadRequest("--network and --shapes belong to simulated GPUs: %%ranks -n 4 --gpu H100 --shapes")
            return None
        if options.backend is not None:
            raise BadRequest("--gpu brings its own backend: leave --backend out.")
        if find_spec("simgpu") is None:
            raise BadRequest(
                "--gpu needs the package simgpu: install it (pip install simgpu), then restart the kernel."
            )
        network = (options.network or "").strip("\"'")
        return {"module": IN_RANK, "gpu": options.gpu.strip("\"'"), "network": network, "shapes": options.shapes}

    def words(self, options: Options) -> str:
        return f"a simulated {options['gpu']}" + (" (shapes only)" if options["shapes"] else "")

    def connected(self, options: Options, size: int, nodes: int) -> str:
        links: str = import_module(IN_RANK).connected(options, size, nodes)
        return links

    def show(self, command: str, options: Options | None, recorded: Callable[[], list[Any]]) -> Any:
        if options is None:
            raise BadRequest(
                f"%ranks {command} shows simulated GPUs: run a cell that begins with %%ranks -n 4 --gpu H100."
            )
        try:
            return import_module(IN_RANK).picture(command, recorded())
        except ValueError as error:
            raise BadRequest(str(error)) from None

    def refusal(self, backend: str | None, device: str, own: str) -> str:
        from torch.distributed import Backend

        if "nccl" in (backend or "") and device == DEVICE:
            return (
                f"These ranks have simulated GPUs: where a program for real ones says {backend!r}, write {own!r}, "
                "or leave the backend out to get what fits."
            )
        if backend == BACKEND and not hasattr(Backend, BACKEND.upper()):  # nobody has made one here
            return (
                f"These ranks have no simulated GPUs for {BACKEND!r}: begin with %%ranks -n 4 --gpu H100, "
                "or leave the backend out to get what fits."
            )
        return ""


PROVIDER = SimulatedGpus()
