"""The module that torch sees as ``torch.simgpu``. It has what ``torch.cuda`` has, as far as it makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from simgpu.cluster import current, exists
from simgpu.random_state import get_rng_state, manual_seed, manual_seed_all, set_rng_state
from simgpu.streams import Event, Stream

__all__ = ["Event", "Stream", "get_rng_state", "manual_seed", "manual_seed_all", "set_rng_state"]

_initialized = True  # torch.utils.checkpoint looks for it before it keeps the random state
is_available = exists


def is_initialized() -> bool:
    """Like ``is_available``: there is nothing to start."""
    return is_available()


def device_count() -> int:
    """GPUs of the simulated cluster; 0 if there is none."""
    return len(current()) if is_available() else 0


def current_device() -> int:
    """The GPU that "simgpu" without a number means."""
    return current().current_index() if is_available() else 0


def set_device(gpu: int | str | torch.device) -> None:
    """Change the GPU that "simgpu" without a number means, in this thread."""
    current().set_current(current().index(gpu))


class device:
    """``with torch.simgpu.device(1): …``: inside, "simgpu" without a number means GPU 1."""

    def __init__(self, gpu: int | str | torch.device | None) -> None:
        self.gpu = None if gpu is None or gpu == -1 else current().index(gpu)

    def __enter__(self) -> None:
        if self.gpu is not None:
            self.before = current().current_index()
            current().set_current(self.gpu)

    def __exit__(self, *exc: object) -> None:
        if self.gpu is not None:
            current().set_current(self.before)


def on(gpu: int) -> device:
    """``with simgpu.on(200): …``: inside, "simgpu" without a number means GPU 200.

    The way to reach GPUs beyond 127: torch's device numbers end there.
    """
    return device(gpu)


def current_stream(gpu: int | str | torch.device | None = None) -> Stream:
    """The stream that work on a GPU joins."""
    return current().current_stream(current().index(gpu))


def default_stream(gpu: int | str | torch.device | None = None) -> Stream:
    """The stream that a GPU starts with."""
    return current().gpus[current().index(gpu)].default_stream


def set_stream(stream: Stream) -> None:
    """Work on the stream's GPU joins it from now on."""
    current().set_stream(stream)


@contextmanager
def stream(which: Stream | None) -> Iterator[Stream | None]:
    """``with torch.simgpu.stream(s): …``: work inside joins ``s``. None: no change."""
    if which is None:
        yield None
        return
    with which:
        yield which


def synchronize(gpu: int | str | torch.device | None = None) -> None:
    """The host waits until a GPU (None: the current one) has nothing left to do."""
    current().synchronize(current().index(gpu))


def memory_allocated(gpu: int | str | torch.device | None = None) -> int:
    """Bytes that tensors hold on a GPU now."""
    return current().gpus[current().index(gpu)].memory.allocated


def max_memory_allocated(gpu: int | str | torch.device | None = None) -> int:
    """The most bytes that tensors have held on a GPU."""
    return current().gpus[current().index(gpu)].memory.peak


def memory_reserved(gpu: int | str | torch.device | None = None) -> int:
    """The same as ``memory_allocated``: what a tensor gives back is free at once, no allocator keeps it."""
    return memory_allocated(gpu)


def max_memory_reserved(gpu: int | str | torch.device | None = None) -> int:
    """The same as ``max_memory_allocated``."""
    return max_memory_allocated(gpu)


def memory_stats(gpu: int | str | torch.device | None = None) -> dict[str, int]:
    """What ``torch.cuda.memory_stats`` says of allocated and reserved bytes: now, at the peak, and all together."""
    ledger = current().gpus[current().index(gpu)].memory
    figures = {
        "current": ledger.allocated,
        "peak": ledger.peak,
        "allocated": ledger.taken,
        "freed": ledger.taken - ledger.allocated,
    }
    return {f"{kind}_bytes.all.{name}": n for kind in ("allocated", "reserved") for name, n in figures.items()}


def reset_peak_memory_stats(gpu: int | str | torch.device | None = None) -> None:
    """Start again to look for the peak."""
    ledger = current().gpus[current().index(gpu)].memory
    ledger.peak = ledger.allocated


def mem_get_info(gpu: int | str | torch.device | None = None) -> tuple[int, int]:
    """Free bytes and all bytes of a GPU."""
    ledger = current().gpus[current().index(gpu)].memory
    return ledger.capacity - ledger.allocated, ledger.capacity


def empty_cache() -> None:
    """Nothing to do: simulated memory is free at once."""


def get_device_properties(gpu: int | str | torch.device | None = None) -> SimpleNamespace:
    """Name and memory of a GPU."""
    model = current().gpus[current().index(gpu)].model
    return SimpleNamespace(name=model.name, total_memory=model.memory_bytes, multi_processor_count=1)


def get_device_name(gpu: int | str | torch.device | None = None) -> str:
    """Name of a GPU's hardware."""
    return get_device_properties(gpu).name


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast("simgpu", dtype=…)`` can use."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Every simulated GPU computes in bfloat16 (on those without it, as slowly as in fp32)."""
    return True


def _is_in_bad_fork() -> bool:
    return False
