"""A thing as it is: a flat dict from paths (``model.first.weight.requires_grad``) to plain tokens.

Two snapshots, one before a learner's call and one after it, say what has changed: mode, ``requires_grad``, numbers,
identity (ties!), memory, hooks, gradients, attributes.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from checks.plain import bits

State = dict[str, Any]
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.device, torch.dtype)
_NO_OBJECTS = (type, types.ModuleType, types.FunctionType, types.MethodType, torch.Generator)
_OF_SIMULATED = {"raw", "allocation", "from_host", "is_parameter"}  # attributes of a tensor on a simulated GPU
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Where its numbers are: a tensor on a simulated GPU wraps one on the CPU."""
    return getattr(tensor, "raw", tensor)


def digest(tensor: torch.Tensor) -> str:
    """The bits of a tensor."""
    tensor = raw(tensor)
    if tensor.is_meta:  # a simulated GPU that keeps only shapes
        return ""
    return hashlib.blake2b(bits(tensor).numpy().tobytes(), digest_size=8).hexdigest()


class Snapshot:
    """Of some named things. It keeps what it has seen alive, so that no identity is given to another thing."""

    def __init__(self, things: dict[str, Any]) -> None:
        self.state: State = {}
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        with torch.no_grad():
            for name, thing in things.items():
                self._note(name, thing)

    def changes_to(self, later: Snapshot) -> list[tuple[str, Any, Any]]:
        """Paths that differ, with the tokens before and after. Hooks differ as ``….hooks.added`` or ``….removed``."""
        return list(self._changes(later.state))

    def _changes(self, later: State) -> Iterator[tuple[str, Any, Any]]:
        for path, before in self.state.items():
            after = later.get(path)
            if before == after:
                continue
            if path.endswith(".hooks"):
                lost = set(before) - set(after or ())
                yield f"{path}.{'removed' if lost else 'added'}", len(before), len(after or ())
            else:
                yield path, before, after
        for path, after in later.items():  # (a gradient that was not there before)
            if path not in self.state and path.endswith(".grad.requires_grad") and after:
                yield path, False, after

    def _note(self, path: str, thing: Any) -> None:
        if f"{path}.is" in self.state:
            return
        self._kept.append(thing)
        self.state[f"{path}.is"] = _identity(thing)
        if isinstance(thing, torch.Tensor):
            self._tensor(path, thing)
        elif isinstance(thing, nn.Module):
            self._module(path, thing)
        elif isinstance(thing, list | tuple):
            self.state[f"{path}.length"] = len(thing)
            for index, part in enumerate(thing):
                self._note(f"{path}[{index}]", part)
        elif isinstance(thing, dict):
            self.state[f"{path}.keys"] = [str(key) for key in thing]
            for key, part in thing.items():
                self._note(f"{path}[{key}]", part)
        elif hasattr(thing, "__dict__") and not isinstance(thing, _NO_OBJECTS) and id(thing) not in self._seen:
            self._seen.add(id(thing))
            self._object(path, vars(thing))

    def _object(self, path: str, inside: dict[str, Any]) -> None:
        """Of any class: a data set, an optimizer."""
        self.state[f"{path}.attributes"] = sorted(inside)
        for name, value in inside.items():
            if isinstance(value, _PLAIN):
                self.state[f"{path}.{name}"] = _identity(value)
            else:
                self._note(f"{path}.{name}", value)

    def _tensor(self, path: str, tensor: torch.Tensor) -> None:
        for aspect in ("requires_grad", "is_leaf"):
            self.state[f"{path}.{aspect}"] = getattr(tensor, aspect)
        for aspect in ("shape", "dtype", "device"):
            self.state[f"{path}.{aspect}"] = str(getattr(tensor, aspect))
        self.state[f"{path}.memory"] = raw(tensor).data_ptr()
        self.state[f"{path}.value"] = digest(tensor)
        self.state[f"{path}.hooks"] = [one for name in _TENSOR_HOOKS for one in _hooks(getattr(tensor, name, None))]
        own = [(name, value) for name, value in vars(tensor).items() if name not in _OF_SIMULATED]
        self.state[f"{path}.attributes"] = sorted(f"{name} {_identity(value)}" for name, value in own)
        gradient = tensor.grad if tensor.is_leaf else None
        self.state[f"{path}.grad"] = "none" if gradient is None else "there"
        if gradient is not None:
            self._note(f"{path}.grad", gradient)

    def _module(self, path: str, module: nn.Module) -> None:
        inside = vars(module)
        self.state[f"{path}.training"] = module.training
        own = sorted(name for name in vars(type(module)) if not name.startswith("__"))  # (Python adds some of those)
        self.state[f"{path}.class"] = f"{type(module).__qualname__} {id(type(module).forward)} {own}"
        self.state[f"{path}.saved"] = sorted(set(module._buffers) - module._non_persistent_buffers_set)
        self.state[f"{path}.hooks"] = [
            one for name in inside if name.endswith("_hooks") for one in _hooks(inside[name], name)
        ]
        for part in ("_parameters", "_buffers", "_modules"):
            self.state[f"{path}.{part}"] = list(inside[part])
            for name, value in inside[part].items():
                self._note(f"{path}.{name}", value)
        own = [(name, value) for name, value in inside.items() if name != "training"]
        self.state[f"{path}.attributes"] = sorted(f"{name} {_identity(value)}" for name, value in own)
        self._kept += [value for _, value in own]


def _identity(thing: Any) -> str:
    return f"{type(thing).__name__} {thing!r}"[:200] if isinstance(thing, _PLAIN) else f"at {id(thing)}"


def _hooks(hooks: Any, kind: str = "") -> list[str]:
    return [f"{kind} {key} {id(hook)}" for key, hook in (hooks or {}).items()]


def copies(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer once, by name, as it is now."""
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: raw(tensor).detach().clone() for name, tensor in named.items()}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """The gradients that there are, by the parameter's name, as they are now."""
    return {name: raw(p.grad).detach().clone() for name, p in model.named_parameters() if p.grad is not None}
