"""What GPUs can do, from their data sheets and from measurements (no torch needed).

``kinds.toml`` has V100, A100, H100, … with their sources; ``kind`` their fields, and how to read them. ``gpu(name)``
finds one, ``hardware.H100`` is one, and ``link(name)`` finds a link.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any

from simgpu.hardware.kind import GIB, GPU
from utils.hardware import links
from utils.hardware.links import ALL as LINKS
from utils.hardware.links import Link

__all__ = ["ALL", "GIB", "GPU", "gpu", "link"]
_NOT_MEASURED = "assumed: the {}'s, and its energy of an operation; not measured"


def link(name: str | Link) -> Link:
    """The link with this name, or the only one whose name begins so: "InfiniBand NDR". Case does not matter.

    Raises:
        ValueError: there is none (the sentence suggests the nearest name and lists all), or several (it lists those).
    """
    if isinstance(name, Link):
        return name
    begun = [one for one in LINKS if one.name.lower().startswith(name.lower())]
    whole_words = [one for one in begun if f"{one.name} ".lower().startswith(f"{name} ".lower())]
    found = whole_words or begun  # "Ethernet 10" is not "Ethernet 100 Gbit/s"
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name!r} may be any of {', '.join(one.name for one in found)}: say which.")
    names = [one.name for one in LINKS]
    near = difflib.get_close_matches(name, names, 1, 0.3)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"there is no link called {name!r}.{hint} Known: {', '.join(names)}")


def _read() -> dict[str, tuple[GPU, list[str]]]:
    """Each table of ``kinds.toml``: the GPU, and its names."""
    tables: dict[str, dict[str, Any]] = {}
    found = {}
    for key, own in tomllib.loads(Path(__file__).with_name("kinds.toml").read_text("utf-8")).items():
        of = tables.get(own.pop("like", ""), {})
        names = [own["name"], *own.pop("aliases", [])]
        shares = {"achievable_source": _NOT_MEASURED.format(of["name"])} if of and "year" in own else {}
        tables[key] = values = of | shares | own
        found[key] = _gpu(dict(values)), names
    return found


def _gpu(values: dict[str, Any]) -> GPU:
    """From the units of data sheets to bytes, seconds and FLOP/s."""
    for field in {"nvlink", "host", "network"} & values.keys():
        value = values[field]
        values[field] = Link(**value) if isinstance(value, dict) else getattr(links, value) if value else None
    for field, unit in (("pageable", 1e9), ("pinning", 1e9)):
        if field in values:
            values[f"{field}_bytes_per_s"] = values.pop(field) * unit
    return GPU(
        memory_bytes=values.pop("memory_gib") * GIB,
        memory_bytes_per_s=values.pop("bandwidth") * 1e9,
        flops={kind: rate * 1e12 for kind, rate in values.pop("tflops").items()},
        kernel_s=values.pop("kernel_us") * 1e-6,
        **values,
    )


def _plain(name: str) -> str:
    """A name without what people write in different ways: case, spaces, hyphens, and the maker's words."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(tesla|geforce)?", "", plain)


_KINDS = _read()
ALL: tuple[GPU, ...] = tuple(kind for kind, _ in _KINDS.values())
"""Every kind. The last two are no products."""
_BY_NAME = {_plain(name): kind for kind, names in _KINDS.values() for name in names}


def __getattr__(name: str) -> GPU:
    if name in _KINDS:
        return _KINDS[name][0]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def gpu(name: str | GPU) -> GPU:
    """The GPU with this name. Case, spaces and hyphens do not matter: "h100-sxm", "H100", "NVIDIA H100 80GB HBM3".

    Raises:
        ValueError: if there is none; the sentence suggests the nearest name and lists all.
    """
    if isinstance(name, GPU):
        return name
    found = _BY_NAME.get(_plain(name))
    if found is None:
        near = difflib.get_close_matches(_plain(name), _BY_NAME, n=1, cutoff=0.5)
        hint = f"Did you mean {_BY_NAME[near[0]].name!r}? " if near else ""
        raise ValueError(f"There is no GPU called {name!r} here. {hint}Known: {', '.join(g.name for g in ALL)}.")
    return found
