"""The tensor that lives on a simulated GPU.

``SimTensor`` wraps a plain tensor that holds the numbers (on the CPU) or only their shapes (on torch's "meta"
device), and the allocation on the GPU that it uses. What operators do with it is in ``operators``, how it gets to
another device in ``copies``.

Why the device is kept in Python: torch's C++ side sees a backend written in Python as ONE device, whatever its number,
and autograd insists on it. So for C++ every tensor is on "simgpu:0", and the class answers for the real number:
``device``, ``get_device``, ``to``, ``cpu``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import torch

from simgpu._torch import new_wrapper, no_torch_function
from simgpu.cluster import SimulatedGPU, current
from simgpu.memory import allocator as memory
from simgpu.memory.allocator import Allocation
from simgpu.time import happens_before

_plain: Any = torch.Tensor
"""Its properties as the descriptors that they are, which its stubs do not show."""


def _refuse_tracing(*_: Any) -> NoReturn:
    raise NotImplementedError(
        "a tensor on a simulated GPU cannot be traced (torch.export, make_fx, FakeTensorMode, …): trace the model "
        "while it is on the CPU"
    )


class _Swapped:
    """Tells ``Module.to`` to swap a CPU parameter with its copy on a GPU, so that it stays the same object.

    From GPU to GPU that is not needed (and would fail while a graph still uses the parameter): ``data`` is set.
    """

    def __get__(self, tensor: SimTensor | None, _owner: type) -> Callable[..., Any]:
        if tensor is None:  # asked of the class, by what traces
            return _refuse_tracing
        if not tensor.__dict__.get("from_host"):
            raise AttributeError("only tensors that come from the host need this")
        return lambda: (["raw"], None)


class SimTensor(torch.Tensor):
    """A tensor on a simulated GPU. Made by ``device="simgpu:1"`` and by operators, never by hand."""

    raw: torch.Tensor
    allocation: Allocation
    from_host: bool  # it comes from the host (set where that is so)
    known: torch.Tensor  # its numbers, where ``simgpu.tensors.known`` keeps them
    run_operator: ClassVar[Callable[[Any, tuple, dict], Any]]  # this and some more: simgpu.install
    to: ClassVar[Callable[..., torch.Tensor]]

    __torch_function__: ClassVar[Any] = no_torch_function

    @staticmethod
    def __new__(cls, raw: torch.Tensor, allocation: Allocation) -> SimTensor:
        self = new_wrapper(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device("simgpu", 0),
        )
        self.raw = raw
        self.allocation = allocation
        return self

    # --- Where it is ----------------------------------------------------------------------------------------

    @property
    def gpu(self) -> int:
        """The number of the simulated GPU."""
        return self.allocation.memory.gpu

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's cannot be set, though its stub says so
        gpu = self.allocation.memory.gpu
        return torch.device("simgpu", gpu) if gpu < 128 else torch.device("simgpu")

    def get_device(self) -> int:
        return self.allocation.memory.gpu

    # --- To other devices -----------------------------------------------------------------------------------

    def cpu(self, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return self.to("cpu")

    def numpy(self, *_args: Any, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def __array__(self, *_args: Any, **_kwargs: Any) -> Any:
        return self.numpy()

    def __dlpack__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise BufferError(f"a tensor on {self.device} has no memory to share: copy it to the CPU first, with .cpu()")

    def __format__(self, specification: str) -> str:
        return self.item().__format__(specification) if self.dim() == 0 else object.__format__(self, specification)

    def new_tensor(
        self, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
    ) -> torch.Tensor:
        device = self.device if device is None else device
        return torch.tensor(data, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad)

    def new(self, *args: Any, device: Any = None) -> torch.Tensor:  # type: ignore[override]  # as its users know it
        numbers = len(args) == 1 and not isinstance(args[0], int | torch.Size)
        return self.new_tensor(args[0], device=device) if numbers else self.new_empty(*args or (0,), device=device)

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no types
        if not current().numbers or self.raw.is_meta:
            text = f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype})"
        else:
            text = repr(self.raw.detach())
        parts = [text[:-1], f"device='{self.device}'"]
        if self.grad_fn is not None:
            parts.append(f"grad_fn=<{self.grad_fn.name().rpartition('::')[2]}>")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        return ", ".join(parts) + ")"

    # --- What nn.Parameter, Module.to, copy and torch.save need ---------------------------------------------

    @property
    def _is_param(self) -> bool:
        return self.__dict__.get("is_parameter", False)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        self.__dict__["is_parameter"] = value
        if value:
            self.allocation.label.kind = memory.PARAMETERS

    def untyped_storage(self) -> SimStorage:
        return SimStorage(self.allocation)

    def data_ptr(self) -> int:
        return self.allocation.pointer + int(self.raw.storage_offset()) * self.itemsize if self.numel() else 0

    def record_stream(self, stream: Any) -> None:
        """Its memory is used in this stream, too: the allocator keeps it until that has done what it has by then.

        (Simulated memory is never used twice; but see ``Profile.peak_reserved``, and ``races``.)
        """
        self.allocation.used_on[stream] = None
        if happens_before.watching is not None:
            happens_before.watching.record_stream(self.allocation, stream)

    @property
    def data(self) -> SimTensor:
        return _plain.data.__get__(self)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, SimTensor):
            raise RuntimeError(
                f"a tensor on {self.device} cannot take the data of one on {new.device}: move that first, with "
                f".to({str(self.device)!r})"
            )
        _plain.data.__set__(self, new)
        self.raw, self.allocation = new.raw, new.allocation
        if self._is_param:
            self.allocation.label.kind = memory.PARAMETERS

    @property
    def grad(self) -> torch.Tensor | None:
        return _plain.grad.__get__(self)

    @grad.setter
    def grad(self, new: torch.Tensor | None) -> None:
        if isinstance(new, SimTensor) and new.gpu != self.gpu:
            raise RuntimeError(
                "assigned grad has data located on a different device: the tensor is on "
                f"{self.device}, the gradient on {new.device}"
            )
        _plain.grad.__set__(self, new)

    @grad.deleter
    def grad(self) -> None:
        _plain.grad.__set__(self, None)

    __tensor_flatten__ = _Swapped()

    @staticmethod
    def __tensor_unflatten__(*_: Any) -> torch.Tensor:
        return _refuse_tracing()

    def __copy__(self) -> torch.Tensor:
        shared = self.detach().requires_grad_(self.requires_grad)
        return torch.nn.Parameter(shared, self.requires_grad) if isinstance(self, torch.nn.Parameter) else shared

    def __deepcopy__(self, memo: dict) -> SimTensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol"
            )
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            copied: Any = self.detach().clone()
            copied.requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, self.requires_grad)
            if self.grad is not None:
                copied.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copied
        return copied

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's is the function that switches it off
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        for other in types:  # a DTensor, say, which takes itself apart and comes back
            if not issubclass(other, SimTensor) and other.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                return NotImplemented
        return cls.run_operator(func, args, kwargs or {})


class SimStorage(torch.UntypedStorage):
    """What ``tensor.untyped_storage()`` is: its size, which can be changed in place."""

    allocation: Allocation

    def __new__(cls, allocation: Allocation) -> SimStorage:
        self = super().__new__(cls, 0, device="cpu")  # type: ignore[call-arg]  # torch's stub says nothing of it
        self.allocation = allocation
        return self

    def size(self) -> int:
        """Its bytes, not rounded up."""
        return self.allocation.storage.nbytes()

    nbytes = size

    def resize_(self, nbytes: int) -> None:
        """Free it (0 bytes), or take memory again. What was in it is lost."""
        self.allocation.resize(nbytes)

    def data_ptr(self) -> int:
        """Where it is in the GPU's memory: a number that no other storage has; 0 if it is empty."""
        return self.allocation.pointer if self.size() else 0

    def is_shared(self) -> bool:
        """As every storage on a GPU."""
        return True

    def _weak_ref(self) -> Any:
        return self.allocation.storage._weak_ref()

    @property
    def _cdata(self) -> int:
        return self.allocation.address

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's cannot be set, though its stub says so
        """The GPU that it is on."""
        return torch.device("simgpu", self.allocation.memory.gpu)


def new(raw: torch.Tensor, gpu: SimulatedGPU, kind: str | None = None) -> SimTensor:
    """A tensor with a storage of its own on ``gpu``."""
    return SimTensor(raw, Allocation(gpu.memory, raw.untyped_storage(), kind or memory.kind_now()))


def take_over_shape(tensor: SimTensor, allocation: Allocation | None = None) -> None:
    """The plain tensor has been resized, as operators do with ``out=``: let the wrapper and the ledger follow.

    Args:
        allocation: which counts its storage; None: a new one.
    """
    kind, home = tensor.allocation.label.kind, tensor.allocation.memory
    allocation = allocation or Allocation(home, tensor.raw.untyped_storage(), kind)
    _plain.data.__set__(tensor, SimTensor(tensor.raw, allocation))
    tensor.allocation = allocation


def check_cluster(tensor: SimTensor) -> None:
    """Raise a RuntimeError if the tensor's cluster has been replaced."""
    if tensor.allocation.memory.clock is not current().clock:
        raise RuntimeError(
            "this tensor belongs to an earlier simulated cluster, which simgpu.cluster(...) has replaced: make the "
            "model and its inputs again on the new one"
        )
