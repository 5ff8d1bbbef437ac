"""Values on their way between the notebook and its ranks."""

from __future__ import annotations

import contextlib
import functools
import io
import linecache
import pickle
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def dumps(value: Any) -> bytes:
    """Pickle a value for the notebook: what a cell defined by value, tensors of a GPU as tensors of the CPU.

    A parameter stays one, so that a model comes whole; what shares a parameter (tied weights) shares it there too.
    """
    import cloudpickle
    import torch

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, torch.Tensor) and thing.device.type != "cpu":
                here = thing.detach().cpu()
                if isinstance(thing, torch.nn.Parameter):
                    here = torch.nn.Parameter(here, thing.requires_grad)
                elif thing.is_leaf:
                    here.requires_grad_(thing.requires_grad)
                return here.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def dumps_plain(value: Any) -> bytes:
    """Pickle a value of the notebook for the ranks, without importing torch for it."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            # Parts of an extension are modules that cannot be imported: once_differentiable uses torch._C._functions.
            # And torch.ops and torch.backends.cudnn are modules of a class of their own, which pickle does not know.
            odd = isinstance(thing, ModuleType) and (type(thing) is not ModuleType or thing.__name__ not in sys.modules)
            if odd and _is_found(thing):
                return pkgutil.resolve_name, (thing.__name__,)
            # A function that functools.cache remembers for; those of libraries are found by their names.
            if isinstance(thing, functools._lru_cache_wrapper) and not _has_a_place(thing):
                how = thing.cache_parameters()
                return _remembered, (thing.__wrapped__, how["maxsize"], how["typed"])
            torch = sys.modules.get("torch")
            if (
                torch is not None
                and isinstance(thing, torch.Tensor)
                and thing.device.type not in ("cpu", "cuda", "meta")
            ):
                raise TypeError(
                    f"a tensor, or a model, on the notebook's own {thing.device} cannot go to the ranks: move it to "
                    "the CPU before, with .cpu(), and on each rank to its own GPU"
                )
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def _remembered(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Callable[..., Any]:
    return functools.lru_cache(maxsize, typed)(function)


def _has_a_place(function: Callable[..., Any]) -> bool:
    """Whether it can be imported by its name."""
    home = sys.modules.get(function.__module__)
    return function.__module__ != "__main__" and getattr(home, function.__qualname__, None) is function


def _is_found(module: ModuleType) -> bool:
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        return pkgutil.resolve_name(module.__name__) is module
    return False


def sources_of(function: Callable[..., Any]) -> dict[str, str]:
    """The source of the notebook cell that defines the function, so that tracebacks show its lines."""
    code = getattr(function, "__code__", None)
    entry = linecache.cache.get(code.co_filename) if code is not None else None
    return {code.co_filename: "".join(entry[2])} if code is not None and entry and len(entry) == 4 else {}
