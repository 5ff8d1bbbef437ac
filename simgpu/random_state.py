"""Random numbers of simulated GPUs.

GPU 0 of one process draws from the CPU's generator, so that a program on one simulated GPU gives the CPU's numbers.
Each other GPU has a generator of its own, so that threads that run at the same time give the same numbers every time;
and so has the GPU of every rank, as on CUDA: what some ranks draw on the CPU does not bring their GPUs apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from simgpu._torch import PlainGenerator
from simgpu.cluster import SimulatedGPU, current, exists

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
        if asked.type != "simgpu":
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
