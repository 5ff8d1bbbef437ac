"""How torch learns of the device "simgpu": its module ``torch.simgpu``, and the places where torch asks for devices.

``torch.simgpu`` has what ``torch.cuda`` has, as far as it makes sense: ``synchronize``, ``memory_allocated``, ….
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from utils.simgpu import clock, memory
from utils.simgpu.cluster import Event as Event  # torch.simgpu.Event
from utils.simgpu.cluster import SimulatedGPU, Stream, current, exists

# --- torch.simgpu -------------------------------------------------------------------------------------------

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


# --- Random numbers -----------------------------------------------------------------------------------------
# GPU 0 draws from the CPU's generator, so that a program on one simulated GPU gives the CPU's numbers. Each
# other GPU has a generator of its own, so that threads that run at the same time give the same numbers every time.

_random_lock = threading.Lock()


def _fresh_state(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def manual_seed_all(seed: int) -> None:
    """Seed every simulated GPU (``torch.manual_seed`` does this too)."""
    if is_available():
        for gpu in current().gpus[1:]:
            gpu.random_state = _fresh_state(seed)


def manual_seed(seed: int) -> None:
    """Seed the current GPU."""
    set_rng_state(_fresh_state(seed))


def get_rng_state(gpu: int | str | torch.device | None = "simgpu") -> torch.Tensor:
    """The state of a GPU's random numbers."""
    home = current().gpus[current().index(gpu)]
    if home.index == 0:
        return torch.get_rng_state()
    if home.random_state is None:
        home.random_state = _fresh_state(torch.initial_seed())
    return home.random_state


def set_rng_state(state: torch.Tensor, gpu: int | str | torch.device | None = "simgpu") -> None:
    """Set the state of a GPU's random numbers."""
    home = current().gpus[current().index(gpu)]
    if home.index == 0:
        torch.set_rng_state(state)
    else:
        home.random_state = state.clone()


@contextmanager
def random_numbers_of(gpu: SimulatedGPU) -> Iterator[None]:
    """Inside, torch's CPU operators draw the random numbers of a simulated GPU."""
    with _random_lock:
        if gpu.index == 0:
            yield
            return
        outer = torch.get_rng_state()
        torch.set_rng_state(get_rng_state(gpu.index))
        try:
            yield
        finally:
            gpu.random_state = torch.get_rng_state()
            torch.set_rng_state(outer)


# --- Where torch asks ---------------------------------------------------------------------------------------


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return exists()

    def has_primary_context(self, _device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def _device_guard() -> torch._C._acc.DeviceGuard:
    """What C++ asks for the device's type; and the cure of a defect of torch 2.13 that ends the process.

    If a hook or an operator raises during backward, autograd's thread leaves its stream guard, whose end asks the
    device guard for its type, in Python. Python cannot be called while an exception is on its way in C++: that throws
    another one, and two at once end the process ("terminate called without an active exception"). So the method first
    puts the exception aside, and ``_watch_backward`` raises it when autograd has returned.

    How it gets hold of the exception: CPython refuses a new object that a type returns while an exception is set, and
    raises a SystemError with that exception as its cause.
    """
    private_use = torch._C._autograd.DeviceType.PrivateUse1

    def type_(_self: Any, make_something: Any = object, kind: Any = private_use) -> Any:
        try:
            make_something()
        except SystemError as error:
            _errors_in_backward.append(error.__cause__ or error)
        return kind

    return type("DeviceGuard", (torch._C._acc.DeviceGuard,), {"type_": type_})()


_errors_in_backward: list[BaseException] = []
_registered = False


def register() -> None:
    """Make "simgpu" a device of torch, once for each process."""
    global _registered
    if _registered:
        return
    _registered = True
    import sys

    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from utils.simgpu import attention, autocast, factories, parallel, saving, transfers
    from utils.simgpu.tensor import CopyFromHost, SimTensor

    _setup_privateuseone_for_python_backend(
        "simgpu", sys.modules[__name__], hook=_Hooks(), device_guard=_device_guard()
    )
    plain_to = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """C++ takes "simgpu" without a number for number 0: say which GPU is meant."""
        asked = args[0] if args else kwargs.get("device")
        if exists() and current().current_index() and asked is not None and _without_number(asked):
            home = CopyFromHost.apply(self, current().current_index())
            rest = {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format")}
            return home.to(*args[1:2], **rest) if args[1:2] or rest else home
        return plain_to(self, *args, **kwargs)

    plain_as_tensor = torch.as_tensor

    def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        """C++ would take one simulated GPU for another."""
        if isinstance(data, SimTensor) and device is not None:
            return data.to(device, dtype or data.dtype)
        return plain_as_tensor(data, dtype=dtype, device=device)

    plain_to_dlpack = torch.utils.dlpack.to_dlpack

    def to_dlpack(tensor: torch.Tensor) -> Any:
        """C++ would hand out a pointer to nothing."""
        return tensor.__dlpack__() if isinstance(tensor, SimTensor) else plain_to_dlpack(tensor)

    torch.Tensor.to, torch.as_tensor = to, as_tensor
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = to_dlpack
    del torch.Tensor.simgpu  # the generated method goes through C++, which knows one device only
    torch.Tensor.simgpu = _to_simgpu
    for module in (factories, attention, autocast, parallel, saving, transfers):
        module.register()
    _ask_the_simulation()
    _watch_optimizers()
    _watch_backward()


def _without_number(device: Any) -> bool:
    return device == "simgpu" if isinstance(device, str) else device == torch.device("simgpu")


def _to_simgpu(
    self: torch.Tensor, gpu: int | str | torch.device | None = None, non_blocking: bool = False
) -> torch.Tensor:
    return self.to(torch.device("simgpu", current().index(gpu)), non_blocking=non_blocking)


def _ask_the_simulation() -> None:
    """torch.accelerator asks C++, which sees one device: answer for it as long as there is a simulated cluster."""
    from torch.nn.parallel import data_parallel

    accelerator = torch.accelerator
    accelerator.device_count = device_count
    accelerator.current_device_index = accelerator.current_device_idx = current_device
    accelerator.set_device_index = accelerator.set_device_idx = set_device
    accelerator.current_stream = current_stream
    accelerator.set_stream = set_stream
    accelerator.synchronize = synchronize
    accelerator.device_index = device
    autocast_enabled = torch.is_autocast_enabled

    def is_autocast_enabled(device_type: str | None = None) -> bool:
        """DataParallel asks without a device type, which means CUDA."""
        return autocast_enabled(device_type or ("simgpu" if exists() else "cuda"))

    torch.is_autocast_enabled = is_autocast_enabled
    asked = torch._utils._get_available_device_type

    def available_device_type() -> str | None:
        return "simgpu" if is_available() else asked()

    torch._utils._get_available_device_type = data_parallel._get_available_device_type = available_device_type


def _watch_optimizers() -> None:
    """What an optimizer allocates in its step and keeps is its state; the rest of the step is "other"."""
    from torch.optim import optimizer as optim

    from utils.simgpu.tensor import SimTensor

    def before(*_: Any) -> None:
        clock.set_in_optimizer(True)

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        clock.set_in_optimizer(False)
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, SimTensor):
                    value.allocation.label.kind = memory.OPTIMIZER_STATE

    optim.register_optimizer_step_pre_hook(before)
    optim.register_optimizer_step_post_hook(after)
    optim._foreach_supported_types.append(SimTensor)  # as on CUDA: one launch for all parameters

    grouped = torch._C._group_tensors_by_device_and_dtype

    def group(tensorlists: list, with_indices: bool = False) -> Any:
        if not any(isinstance(tensor, SimTensor) for tensors in tensorlists for tensor in tensors):
            return grouped(tensorlists, with_indices)
        groups: dict = {}
        for i, tensor in enumerate(tensorlists[0]):
            key = (tensor.device, tensor.dtype) if tensor is not None else (None, None)
            lists, indices = groups.setdefault(key, ([[] for _ in tensorlists], []))
            for mine, theirs in zip(lists, tensorlists, strict=True):
                if theirs:
                    mine.append(theirs[i])
            if with_indices:
                indices.append(i)
        return groups

    torch._C._group_tensors_by_device_and_dtype = group


def _watch_backward() -> None:
    """Autograd's threads get lanes of their own from the moment when backward is called until it returns."""
    from torch.autograd import graph

    from utils.simgpu.tensor import SimTensor

    engine = graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if not is_available():
            return engine(*args, **kwargs)
        simulated = any(isinstance(tensor, SimTensor) for tensor in args[0])
        _check_gradients(*args)
        outermost = not clock.in_backward()
        if outermost:
            _errors_in_backward.clear()
        try:
            with current().clock.backward():
                return engine(*args, **kwargs)
        except SystemError:
            if not _errors_in_backward:
                raise
            error = _errors_in_backward[0]  # put aside: see _device_guard
        finally:
            if outermost and simulated:
                _drain(engine)
        _errors_in_backward.clear()  # their tracebacks keep tensors alive
        raise error

    graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward


def _check_gradients(tensors: Any, gradients: Any = (), *_: Any) -> None:
    """``y.backward(gradient)`` wants the gradient on the GPU of ``y``; C++ cannot tell."""
    from utils.simgpu.tensor import SimTensor

    for i, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=False)):
        if isinstance(tensor, SimTensor) and gradient is not None and gradient.device != tensor.device:
            raise RuntimeError(
                f"invalid gradient at index {i} - expected device {tensor.device} but got {gradient.device}"
            )


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        from utils.simgpu.tensor import new

        return new(torch.empty(0), current().gpus[0])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


def _drain(engine: Any) -> None:
    """Give autograd's thread something tiny to do, so that it lets go of the last task, and of its tensors.

    Without this, what memory is free after backward would depend on how fast that thread is.
    """
    from utils.simgpu.tensor import new

    cluster = current()
    if cluster.tiny_graph is None:
        with torch.enable_grad():
            output = _Nothing.apply(new(torch.empty(0), cluster.gpus[0]).requires_grad_())
        cluster.tiny_graph = (output,), (new(torch.empty(0), cluster.gpus[0]),)
    engine(*cluster.tiny_graph, True, False, (), allow_unreachable=True, accumulate_grad=True)
