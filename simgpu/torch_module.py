"""The module that torch sees as ``torch.simgpu``. It has what ``torch.cuda`` has, as far as it makes sense.

Of random numbers: GPU 0 of one process draws from the CPU's generator, so that a program on one simulated GPU gives the
CPU's numbers. Each other GPU has a generator of its own, so that threads that run at the same time give the same
numbers every time; and so has the GPU of every rank, as on CUDA: what some ranks draw on the CPU does not bring their
GPUs apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from simgpu._torch import PlainGenerator
from simgpu.cluster import SimulatedGPU, current, exists, is_simulated
from simgpu.memory.allocator import Memory, readable
from simgpu.time.streams import Event, Stream

_random_lock = threading.Lock()
drawing = threading.local()  # draw: what runs random operators in this thread, if not they themselves


def _draws_from_cpu(gpu: SimulatedGPU) -> bool:
    return gpu.index == 0 and not current().between_ranks


def _fresh_state(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def manual_seed_all(seed: int) -> None:
    """Seed every simulated GPU (``torch.manual_seed`` does this too)."""
    if exists():
        for gpu in current().own:
            set_rng_state(_fresh_state(seed), gpu.index)


def manual_seed(seed: int) -> None:
    """Seed the current GPU."""
    set_rng_state(_fresh_state(seed))


def get_rng_state(gpu: int | str | torch.device | None = "simgpu") -> torch.Tensor:
    """The state of a GPU's random numbers."""
    home = current().gpus[current().index(gpu)]
    if _draws_from_cpu(home):
        return torch.get_rng_state()
    home.random_state = state_of(home)
    return home.random_state.clone()


def state_of(gpu: SimulatedGPU) -> torch.Tensor:
    """The same of a GPU with a generator of its own; nothing begins by looking."""
    return _fresh_state(torch.initial_seed()) if gpu.random_state is None else gpu.random_state


def set_rng_state(state: torch.Tensor, gpu: int | str | torch.device | None = "simgpu") -> None:
    """Set the state of a GPU's random numbers."""
    home = current().gpus[current().index(gpu)]
    if _draws_from_cpu(home):
        torch.set_rng_state(state)
    else:
        home.random_state = state.clone()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all GPUs of this process."""
    return [get_rng_state(gpu.index) for gpu in current().own]


def set_rng_state_all(states: Iterable[torch.Tensor]) -> None:
    """Set them."""
    for gpu, state in zip(current().own, states, strict=True):
        set_rng_state(state, gpu.index)


def initial_seed() -> int:
    """The seed of the current GPU."""
    return torch.Generator().set_state(get_rng_state()).initial_seed()


def seed() -> None:
    """Seed all GPUs of this process with a number that nobody knows."""
    manual_seed_all(torch.Generator().seed())


def drawn(gpu: SimulatedGPU, func: Any, args: Any, kwargs: dict) -> Any:
    """What a random operator of torch's CPU returns, with the random numbers of a simulated GPU."""
    draw: Callable[[Any, Any, dict], Any] | None = getattr(drawing, "draw", None)
    with _random_lock:
        if _draws_from_cpu(gpu):
            return func(*args, **kwargs)
        outer = torch.get_rng_state()
        torch.set_rng_state(state_of(gpu))
        try:
            return func(*args, **kwargs) if draw is None else draw(func, args, kwargs)
        finally:
            gpu.random_state = torch.get_rng_state()
            torch.set_rng_state(outer)


class _GeneratorType(type(PlainGenerator)):  # type: ignore[misc]  # torch's own metaclass
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, PlainGenerator)


class Generator(PlainGenerator, metaclass=_GeneratorType):
    """``torch.Generator``, also for a simulated GPU: as the operators, it runs on the CPU and says another device."""

    _device: torch.device

    def __new__(cls, device: int | str | torch.device = "cpu") -> Any:
        asked = torch.device(device)
        if not is_simulated(asked.type):
            return PlainGenerator(asked)
        generator = super().__new__(cls)
        generator._device = torch.device("simgpu", current().index(asked))
        return generator

    def __init__(self, device: int | str | torch.device = "cpu") -> None:
        """Everything is done in ``__new__``."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's cannot be set, though its stub says so
        """The simulated GPU."""
        return self._device


__all__ = ["Event", "Stream", "get_rng_state", "manual_seed", "manual_seed_all", "set_rng_state"]

Which = int | str | torch.device | None
T = TypeVar("T")

_initialized = True  # torch.utils.checkpoint looks for it before it keeps the random state
is_available = is_initialized = exists  # there is nothing to start
seed_all = seed


def device_count() -> int:
    """GPUs of the simulated cluster; 0 if there is none."""
    return len(current()) if is_available() else 0


def current_device() -> int:
    """The GPU that "simgpu" without a number means."""
    return current().current_index() if is_available() else 0


def set_device(gpu: int | str | torch.device) -> None:
    """Change the GPU that "simgpu" without a number means, in this thread."""
    current().set_current(current().named(gpu))


class device:
    """``with torch.simgpu.device(1): …``: inside, "simgpu" without a number means GPU 1."""

    def __init__(self, gpu: Which) -> None:
        self.gpu = None if gpu is None or gpu == -1 else current().named(gpu)

    def __enter__(self) -> None:
        if self.gpu is not None:
            self.before = current().current_index()
            current().set_current(self.gpu)

    def __exit__(self, *exc: object) -> None:
        if self.gpu is not None:
            current().set_current(self.before)


def device_of(tensor: torch.Tensor) -> device:
    """``with torch.simgpu.device_of(x): …``: inside, "simgpu" without a number means the GPU of ``x``."""
    return device(tensor.get_device())


def on(gpu: int) -> device:
    """``with simgpu.on(200): …``: inside, "simgpu" without a number means GPU 200.

    The way to reach GPUs beyond 127: torch's device numbers end there.
    """
    return device(gpu)


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


StreamContext = stream


# --- What a GPU says of itself ------------------------------------------------------------------------------


def _asked(answer: Callable[[SimulatedGPU], T]) -> Callable[..., T]:
    return lambda gpu=None: answer(current().gpus[current().index(gpu)])


def _stats(memory: Memory) -> dict[str, int]:
    kept = memory.cache
    found: dict[str, int] = {}
    for kind, *figures in (
        ("allocated", memory.allocated, memory.peak, memory.taken, memory.taken - memory.allocated),
        ("reserved", kept.reserved, kept.peak, kept.taken, kept.taken - kept.reserved),
    ):
        names = (f"{kind}_bytes.all.{name}" for name in ("current", "peak", "allocated", "freed"))
        found.update(zip(names, figures, strict=True))
    return found


def _summary(gpu: SimulatedGPU) -> str:
    rows = (f"{name:<30} {readable(n):>14}" for name, n in _stats(gpu.memory).items())
    return "\n".join([f"simulated {gpu.name}, {gpu.model.name}", *rows])


def _reset_peak(memory: Memory) -> None:
    memory.peak, memory.cache.peak = memory.allocated, memory.cache.reserved


def _reset_sums(memory: Memory) -> None:
    memory.taken, memory.cache.taken = memory.allocated, memory.cache.reserved


# Bytes that tensors hold, and bytes that torch's caching allocator would keep (simgpu.memory.allocator)
memory_allocated = _asked(lambda gpu: gpu.memory.allocated)
max_memory_allocated = _asked(lambda gpu: gpu.memory.peak)
memory_reserved = _asked(lambda gpu: gpu.memory.cache.reserved)
max_memory_reserved = _asked(lambda gpu: gpu.memory.cache.peak)
memory_stats = _asked(lambda gpu: _stats(gpu.memory))
reset_peak_memory_stats = reset_max_memory_allocated = _asked(lambda gpu: _reset_peak(gpu.memory))
reset_accumulated_memory_stats = _asked(lambda gpu: _reset_sums(gpu.memory))
mem_get_info = _asked(lambda gpu: (gpu.memory.capacity - gpu.memory.allocated, gpu.memory.capacity))
current_stream: Callable[..., Stream] = _asked(lambda gpu: current().current_stream(gpu.index))
default_stream: Callable[..., Stream] = _asked(lambda gpu: gpu.default_stream)
synchronize = _asked(lambda gpu: current().synchronize(gpu.index))  # the host waits until it has nothing left to do
get_device_name = _asked(lambda gpu: gpu.model.name)
# CUDA's compute capability (NVIDIA, "CUDA GPU Compute Capability", 2025); 8.0 for a GPU of one's own
_CAPABILITIES = {"V100": (7, 0), "A100": (8, 0), "RTX 3090": (8, 6), "RTX 4090": (8, 9), "H100": (9, 0), "H200": (9, 0)}
get_device_capability = _asked(
    lambda gpu: next((number for name, number in _CAPABILITIES.items() if gpu.model.name.startswith(name)), (8, 0))
)
get_device_properties = _asked(
    lambda gpu: SimpleNamespace(
        name=gpu.model.name,
        total_memory=gpu.model.memory_bytes,
        multi_processor_count=gpu.model.multiprocessors or 1,
        **dict(zip(("major", "minor"), get_device_capability(gpu.index), strict=True)),
    )
)


def memory_summary(gpu: Which = None, abbreviated: bool = False) -> str:
    """The figures of ``memory_stats`` as a table."""
    return _asked(_summary)(gpu)


def empty_cache() -> None:
    """Give back what no tensor uses of what the caching allocator keeps."""
    for gpu in current().own if is_available() else ():
        gpu.memory.cache.empty()


def _always(value: T) -> Callable[..., T]:
    return lambda *_: value


get_amp_supported_dtype = _always([torch.float16, torch.bfloat16])
is_bf16_supported = _always(True)  # on those without it, as slowly as in fp32
_is_in_bad_fork = is_current_stream_capturing = _always(False)
init = ipc_collect = _always(None)
_lazy_init = current  # C++ calls it at the first use of the device: without a cluster it says what to do


def __getattr__(name: str) -> Any:
    """What ``torch.cuda`` has and a simulated GPU has not."""
    there = hasattr(torch.cuda, name) and not name.startswith("_")
    raise AttributeError(
        f"torch.simgpu has no {name}" + ": it says nothing of a simulated GPU, so leave it out" * there, name=name
    )
