"""Plain data: what may travel from a learner's rank process to a check.

A check never unpickles what a learner made: unpickling runs code, and that code would run in the notebook or
in the grader. Numbers, text, containers and tensors are taken over; everything else arrives as an ``Opaque``,
which only knows what it was.
"""

from __future__ import annotations

import io
import numbers
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
    kinds = numbers.Integral if whole else numbers.Real | Decimal
    if isinstance(value, bool) or not isinstance(value, kinds):
        return None
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def from_array(value: Any) -> Any:
    """Python's own numbers and lists in place of numpy's and torch's; all else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def to_bytes(value: Any) -> bytes:
    """Turn a value into bytes that ``from_bytes`` reads without running any code of the value's own."""
    import torch

    buffer = io.BytesIO()
    torch.save(to_plain(value), buffer)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:
    """Read what ``to_bytes`` wrote. Raises pickle.UnpicklingError for anything else."""
    import torch

    with torch.serialization.safe_globals([Opaque, range]):
        return torch.load(io.BytesIO(data), weights_only=True)


def to_plain(value: Any) -> Any:
    """The same value in builtin types; tensors and arrays become tensors on the CPU, the rest ``Opaque``."""
    if value is None or type(value) in (bool, int, float, complex, str, bytes, range, Opaque):
        return value
    if isinstance(value, dict):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):  # named tuples and torch.Size too
        return tuple(to_plain(item) for item in value)
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return {to_plain(item) for item in value}
    kinds: tuple[Any, ...] = (int, float, complex, str, bytes)
    if builtin := next((kind for kind in kinds if isinstance(value, kind)), None):  # numpy's float64, an IntEnum, …
        return builtin(value)
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
                return bits(value.cpu()).clone().view(value.dtype).reshape(value.shape)
        except (TypeError, RuntimeError, NotImplementedError):
            pass  # no memory to copy (a meta or sparse tensor), or an array of objects
    return Opaque(type(value).__name__, shorten(value))


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
