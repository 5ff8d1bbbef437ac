"""Plain data: what may travel from a learner's rank process to a check.

A check never unpickles what a learner made: unpickling runs code, and that code would run in the notebook or
in the grader. Numbers, text, containers and tensors are taken over; everything else arrives as an ``Opaque``,
which only knows what it was.
"""

from __future__ import annotations

import io
import numbers
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_LONGEST = 200  # characters of a repr that a sentence can still show


@dataclass(frozen=True)
class Opaque:
    """Stands for a value that cannot leave the process that made it: a generator, a process group, a model.

    Args:
        kind: the name of its type.
        text: its repr, shortened.
    """

    kind: str
    text: str

    def __repr__(self) -> str:
        return f"a {self.kind}"


def kind_of(value: Any) -> str:
    """What it is, in words: "a str", "a tuple of int, str"."""
    parts = ", ".join(type(one).__name__ for one in value[:4]) if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{' of ' * bool(parts)}{parts}"


def shorten(value: Any, longest: int = _LONGEST) -> str:
    """A repr for a sentence: never long, never an exception."""
    try:
        text = repr(value) if not _is_tensor(value) else _describe_tensor(value)
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def number(value: Any, whole: bool = False) -> Any:
    """A number of any library (numpy's, a Fraction, a Decimal) as Python's own; None for truth values and tensors."""
    if isinstance(value, numbers.Integral if whole else numbers.Real | Decimal) and not isinstance(value, bool):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return None


def from_array(value: Any) -> Any:
    """Python's own numbers and lists in place of numpy's and torch's; all else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def to_bytes(value: Any) -> bytes:
    """Turn a value into bytes that ``from_bytes`` reads without running any code of the value's own."""
    return pickle.dumps(to_plain(value), protocol=4)


def from_bytes(data: bytes) -> Any:
    """Read what ``to_bytes`` wrote. Raises pickle.UnpicklingError for anything else."""
    return _Reader(io.BytesIO(data)).load()


def to_plain(value: Any) -> Any:
    """The same value in builtin types; tensors and arrays become tensors on the CPU, the rest ``Opaque``."""
    if isinstance(value, Opaque | _Tensor):
        return value
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    if isinstance(value, dict):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):  # named tuples and torch.Size too
        return tuple(to_plain(item) for item in value)
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return {to_plain(item) for item in value}
    if isinstance(value, range):
        return value
    if isinstance(value, bool | int | float | complex | str | bytes):  # numpy's float64, an IntEnum, …
        return next(kind(value) for kind in (bool, int, float, complex, str, bytes) if isinstance(value, kind))
    return _numeric(value)


def bits(tensor: Any) -> Any:
    """The bytes of a tensor, one behind the other: a view of it where it is contiguous."""
    import torch

    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # (One element is contiguous whatever its stride, and a view of its bytes needs 1.)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def _numeric(value: Any) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return to_plain(value.item())
    if torch is not None:
        if isinstance(value, torch.dtype | torch.device):
            return str(value)  # "torch.float32", "cpu"
        try:
            if numpy is not None and isinstance(value, numpy.ndarray):
                value = torch.from_numpy(value.copy())
            if isinstance(value, torch.Tensor):
                return _Tensor.of(value)
        except (TypeError, RuntimeError, NotImplementedError):
            pass  # no memory to copy (a meta or sparse tensor), or an array of objects
    return Opaque(type(value).__name__, shorten(value))


@dataclass(frozen=True)
class _Tensor:
    """A tensor as raw bytes, so that reading it back needs no pickle code of torch."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, tensor: Any) -> _Tensor:
        data = bits(tensor.cpu()).numpy().tobytes() if tensor.numel() else b""
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_tensor, (self.dtype, self.shape, self.data)


def _make_tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)


class _Reader(pickle.Unpickler):
    """Reads plain data and refuses every other name."""

    _allowed = frozenset({"set", "frozenset", "range", "complex", "bytearray"})

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in self._allowed:
            return super().find_class(module, name)
        if module == __name__ and name in ("Opaque", "_make_tensor"):
            return globals()[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _describe_tensor(tensor: Any) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dim() == 0:
        return f"tensor({tensor.item():g})" if dtype != "bool" else f"tensor({tensor.item()})"
    if tensor.numel() <= 8:
        return f"tensor({tensor.tolist()})"
    return f"a {dtype} tensor of shape {list(tensor.shape)}"


def in_steps(reads: Sequence[Sequence[int]], share: int) -> list[Sequence[int]]:
    """A worker's samples step by step, where it has read a step's share in several calls, one by one say."""
    if any(len(read) > share for read in reads):
        return list(reads)
    samples = [sample for read in reads for sample in read]
    return [samples[first : first + share] for first in range(0, len(samples), share)]
