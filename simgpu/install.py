"""Every change that simulated GPUs make to torch, in one place: ``install`` makes them, ``uninstall`` takes them back.

(And one change to Python: ``ThreadPoolExecutor.submit``.)

What stays after ``uninstall`` is what torch cannot take back: the name "simgpu" of its device type for others' backends
("PrivateUse1"), with the hooks by which C++ asks for it, which say then that no such device is available.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.cuda import nccl
from torch.nn.parallel import comm
from torch.nn.utils.rnn import PackedSequence
from torch.optim import optimizer as optim
from torch.utils.flop_counter import flop_registry

from simgpu import _torch, torch_module
from simgpu.changes import _undo, around, on_uninstall, put, replace, replace_all, take_back
from simgpu.cluster import current, exists, make_current
from simgpu.report import regions
from simgpu.tensors import attention, autocast, backward, copies, dispatch, factories, parallel, saving
from simgpu.tensors.tensor import SimTensor
from simgpu.time import streams

_METHODS: dict[str, Any] = {
    "run_operator": staticmethod(dispatch.dispatch),
    "to": copies.to,
    "copy_": copies.copy_,
    "__setitem__": copies.set_item,
    "set_": saving.load_into,
    "__reduce_ex__": saving.reduce,
}
"""Of our own tensor (nothing of torch's): those that make tensors, and so stand in modules above its own."""
for _name, _method in _METHODS.items():
    setattr(SimTensor, _name, _method)


def install() -> None:
    """Make "simgpu" a device of torch. A second call changes nothing."""
    if _undo:
        return
    _introduce_device()
    _install_kernels()
    _change_tensors()
    _change_data_parallel()
    _change_accelerator()
    _change_training()
    _say_what_to_do_instead()


def uninstall() -> None:
    """Take everything back: torch is as before the first ``simgpu.cluster``, and there is no cluster any more."""
    make_current(None)
    take_back()


# --- The device, and the kernels of its operators -----------------------------------------------------------

_STORAGES = (torch.TypedStorage, torch.UntypedStorage, _torch.StorageBase)
_CHANGED_BY_TORCH: tuple[Any, ...] = (torch, torch.Tensor, torch.nn.Module, PackedSequence, *_STORAGES)
_methods: dict[tuple[Any, str], Any] = {}


class _Hooks(_torch.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return exists()

    def has_primary_context(self, _device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


_for_good = torch.library.Library("_", "IMPL", "PrivateUse1")


def _no_kernel(func: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    current()  # raises where there are no simulated GPUs any more
    raise NotImplementedError(f"a simulated GPU cannot do {func}: use another operator, or the CPU (tensor.cpu())")


def _introduce_device() -> None:
    """The name, for good; ``torch.simgpu``, ``tensor.simgpu()`` and the like, until ``uninstall``."""
    if not _methods:
        before = {owner: set(vars(owner)) for owner in _CHANGED_BY_TORCH}
        _torch.introduce_device("simgpu", torch_module, hook=_Hooks(), device_guard=backward.device_guard())
        for owner in _CHANGED_BY_TORCH:
            for name in set(vars(owner)) - before[owner]:
                _methods[owner, name] = vars(owner)[name]
                delattr(owner, name)
        _for_good.fallback(_no_kernel)
        if torch.version.cuda is not None:  # for good, too
            refusing = backward.refusing_real_gpus(getattr(*_torch.ENGINES[0]))
            for place in _torch.ENGINES:
                setattr(*place, refusing)
        _methods[torch.Tensor, "simgpu"] = _to_simgpu  # torch's own goes through C++, which knows one device only
    for (owner, name), value in _methods.items():
        put(owner, name, value)
    # For good, as the name: C++ goes on to name this accelerator, and torch asks its module whether there is one.
    sys.modules["torch.simgpu"] = torch_module
    torch.get_device_module(torch.device("simgpu"))


def _install_kernels() -> None:
    """Operators of the dispatcher. Destroying the library gives torch its own kernels back."""
    library = torch.library.Library("aten", "IMPL")
    on_uninstall(functools.partial(_torch.destroy, library))
    for module in (dispatch, factories, attention, autocast, copies):
        for operator, kernel, key in module.kernels():
            library.impl(operator, kernel, key)
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    on_uninstall(functools.partial(_torch.destroy, others))
    others.fallback(torch.library.fallthrough_kernel)


# --- Functions of Python ------------------------------------------------------------------------------------


def _change_tensors() -> None:
    """Where C++ would take one simulated GPU for another; and saving."""
    replace(torch.Tensor, "to", _to)
    replace(torch.Tensor, "type_as", _type_as)
    replace(torch.Tensor, "type", _type)
    replace(torch.Tensor, "data", _data)
    replace(torch, "as_tensor", _as_tensor)
    put(torch, "Generator", torch_module.Generator)
    replace_all(((torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack")), _to_dlpack)
    registry = _torch.PACKAGES
    known = list(registry)
    torch.serialization.register_package(*saving.PACKAGE)
    added = [each for each in registry if each not in known]
    for each in added:
        on_uninstall(functools.partial(registry.remove, each))


def _change_data_parallel() -> None:
    """What ``nn.DataParallel`` calls, of which every module is on simulated GPUs."""
    for name, place in _torch.COMM.items():
        replace(*place, parallel.choosing(getattr(parallel, name)))
    replace(comm, "reduce_add_coalesced", parallel.reduce_add_coalesced)
    replace(nccl, "is_available", parallel.has_nccl)
    replace(nccl, "reduce", parallel.choosing(parallel.reduce))
    replace(*_torch.COPY_STREAM, parallel.copy_stream)
    replace(torch, "is_autocast_enabled", _is_autocast_enabled)
    replace_all(_torch.DEVICE_TYPES, lambda _: lambda: "simgpu")


_TYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def _change_accelerator() -> None:
    """``torch.accelerator``, ``torch.Stream`` and ``torch.Event`` ask C++, which sees one device."""
    replace(torch, "Stream", functools.partial(streams.of_any_device, streams.Stream))
    replace(torch, "Event", functools.partial(streams.of_any_device, lambda _, **options: streams.Event(**options)))
    module = torch_module
    for name in torch.accelerator.__all__:
        if name in vars(module):
            put(torch.accelerator, name, getattr(module, name))
    put(torch.accelerator, "get_device_capability", lambda *_: {"supported_dtypes": _TYPES})
    put(torch.accelerator, "get_memory_info", module.mem_get_info)
    put(torch.accelerator, "device_index", module.device)
    for kind in "index", "idx":
        put(torch.accelerator, f"current_device_{kind}", module.current_device)
        put(torch.accelerator, f"set_device_{kind}", module.set_device)


_ATTENTION = "_scaled_dot_product_flash_attention"


def _change_training() -> None:
    """Backward, the optimizers, and pools of threads."""
    replace_all(_torch.ENGINES, backward.watched)
    replace(BackwardCFunction, "apply", backward.on_its_gpu)
    on_uninstall(optim.register_optimizer_step_pre_hook(parallel.before_step).remove)
    on_uninstall(optim.register_optimizer_step_post_hook(parallel.after_step).remove)
    _torch.FOREACH_TYPES.append(SimTensor)  # as on CUDA: one launch for all parameters
    on_uninstall(lambda: _torch.FOREACH_TYPES.remove(SimTensor))
    replace(*_torch.GROUP_TENSORS, parallel.group)
    for way in "", "_backward":  # FlopCounterMode knows attention of real GPUs, and none of the CPU's
        theirs, ours = (getattr(torch.ops.aten, f"{_ATTENTION}{kind}{way}") for kind in ("", "_for_cpu"))
        flop_registry[ours] = flop_registry[theirs]
        on_uninstall(functools.partial(flop_registry.pop, ours))
    put(*_torch.CHECKPOINTED, None)  # torch keeps what it finds at its first use
    replace(ThreadPoolExecutor, "submit", backward.submit)
    replace(*_torch.TRUNCATED, _truncated)
    replace(torch.autograd.profiler.record_function, "__enter__", regions.entering)
    replace(torch.autograd.profiler.record_function, "__exit__", regions.leaving)


def name_stages() -> None:
    """Pipelines name what they do, once the program has imported them: importing them takes most of a second."""
    stage = getattr(sys.modules.get(f"{regions.PIPELINES}.stage"), "PipelineStage", None)
    if _undo and stage is not None and not hasattr(stage.forward_one_chunk, "__wrapped__"):
        for name, letter in regions.CHUNKS.items():
            replace(stage.__base__, name, regions.of_chunks(letter))


@around
def _truncated(plain: Any, tensor: torch.Tensor, mean: float, std: float, *args: Any, **kwargs: Any) -> torch.Tensor:
    """torch draws until all numbers fit. With shapes alone nobody knows how often: once."""
    once = tensor.device.type == "simgpu" and not current().numbers
    return nn.init.normal_(tensor, mean, std) if once else plain(tensor, mean, std, *args, **kwargs)


def _say_what_to_do_instead() -> None:
    """What does not work, or not as on CUDA."""
    replace(torch, "compile", _compile)
    replace(torch.backends.mha, "get_fastpath_enabled", lambda plain: lambda: plain() and not exists())  # one kernel
    replace(*_torch.SCRIPTED_APPLY, _saying(_SCRIPTED, "swap"))
    replace(*_torch.WORKER_LOOP, _worker_loop)
    of_real_gpus: list[tuple[Any, str]] = [(torch.cuda, "set_device"), (torch.cuda, "set_stream")]
    of_real_gpus += [(torch.cuda.device, "__enter__"), (torch.cuda.Stream, "__new__"), (torch.cuda.Event, "__new__")]
    for place in (*_torch.CUDA_INITS, *of_real_gpus):
        replace(*place, _saying(_FOR_CUDA))


def _saying(sentence: str, where: str = "") -> Callable[[Any], Any]:
    """Where there are simulated GPUs, errors of a function (with these words) say what to do instead."""

    @around
    def function(plain: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except (AssertionError, AttributeError, RuntimeError) as error:
            if not exists() or where not in str(error):
                raise
            raise RuntimeError(sentence) from error

    return function


_SCRIPTED = "torch.jit.script's modules cannot go to a simulated GPU: move the module there first, and script it then"
_FOR_CUDA = (
    "the GPUs here are simulated: where a program for real ones says 'cuda', write 'simgpu' (on ranks device, or "
    "torch.device('simgpu', local_rank)), and torch.simgpu for torch.cuda"
)
_COMPILED = (
    "torch.compile leaves simulated GPUs as they are: what runs there runs operator by operator, with the launches, "
    "the memory and the times of eager mode, not those of fused kernels"
)


@around
def _compile(plain: Any, *args: Any, **kwargs: Any) -> Any:
    if exists():
        warnings.warn(_COMPILED, stacklevel=3)
        kwargs["fullgraph"] = False
    return plain(*args, **kwargs)


@around
def _worker_loop(plain: Any, *args: Any, **kwargs: Any) -> None:
    """A worker of a DataLoader is another process, on CUDA too."""
    make_current(
        None,
        "a DataLoader's worker is a forked process, which has none of its parent's GPUs: give batches of the CPU "
        "to the training loop, and move them there",
    )
    plain(*args, **kwargs)


@around
def _to(plain: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """C++ takes "simgpu" without a number for number 0: say which GPU is meant."""
    asked = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
    if isinstance(asked, SimTensor) and not isinstance(self, SimTensor):
        kwargs.pop("tensor", None)
        return self.to(asked.device, asked.dtype, *args[1:], **kwargs)
    if isinstance(self, SimTensor) and isinstance(asked, str | int | torch.device | torch.Tensor):
        return copies.to(self, *args, **kwargs)  # of whoever calls torch.Tensor.to
    if exists() and current().current_index() and _not_as_in_cpp(asked):
        home = copies.ToCopy.apply(self, current().named(asked))
        rest = {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format")}
        return home.to(*args[1:2], **rest) if args[1:2] or rest else home
    return plain(self, *args, **kwargs)


@around
def _type(plain: Any, self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """C++ would take "torch.simgpu.HalfTensor" for one on GPU 0. It means this GPU, or the current one."""
    simulated = isinstance(self, SimTensor)
    if isinstance(dtype, str) and dtype.startswith("torch.simgpu."):
        dtype = getattr(torch, dtype.rpartition(".")[2]).dtype
    elif not (simulated and isinstance(dtype, torch.dtype)):
        return plain(self, dtype, *args, **kwargs)
    return self.to(self.device if simulated else "simgpu", dtype, *args, **kwargs)


@around
def _type_as(plain: Any, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return self.to(other) if isinstance(other, SimTensor) else plain(self, other)


def _data(plain: Any) -> property:
    def set_data(self: torch.Tensor, new: torch.Tensor) -> None:
        """C++ cannot turn a CPU tensor into a simulated one: the two are swapped, so it stays the same object."""
        if isinstance(self, SimTensor) or not isinstance(new, SimTensor):
            return plain.__set__(self, new)
        there = new.detach().requires_grad_(self.requires_grad)
        is_parameter = isinstance(self, nn.Parameter)
        torch.utils.swap_tensors(self, nn.Parameter(there, self.requires_grad) if is_parameter else there)

    return property(plain.__get__, set_data, plain.__delete__)


def _not_as_in_cpp(device: Any) -> bool:
    """Is it "simgpu" without a number; or number 0, on a rank of which C++ calls the own GPU so?"""
    if not isinstance(device, str | int | torch.device):
        return False
    number_0 = current().between_ranks and device in ("simgpu:0", 0, torch.device("simgpu", 0))
    return device in ("simgpu", torch.device("simgpu")) or number_0


def _to_simgpu(
    self: torch.Tensor, gpu: int | str | torch.device | None = None, non_blocking: bool = False
) -> torch.Tensor:
    return self.to(torch.device("simgpu", current().named(gpu)), non_blocking=non_blocking)


@around
def _as_tensor(plain: Any, data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """C++ would take one simulated GPU for another."""
    if isinstance(data, SimTensor) and device is not None:
        return data.to(device, dtype or data.dtype)
    return plain(data, dtype=dtype, device=device)


@around
def _to_dlpack(plain: Any, tensor: torch.Tensor) -> Any:
    """C++ would hand out a pointer to nothing."""
    return tensor.__dlpack__() if isinstance(tensor, SimTensor) else plain(tensor)


@around
def _is_autocast_enabled(plain: Any, device_type: str | None = None) -> bool:
    """DataParallel asks without a device type, which means CUDA."""
    return plain(device_type) if device_type else plain("simgpu") or plain()
