"""Comparing what was measured with what was expected, and saying how far off it is."""

from __future__ import annotations

import math
import sys
from typing import Any

from utils.checks.plain import shorten
from utils.checks.verdicts import Wrong


def expect(
    sentence: str,
    measured: Any,
    expected: Any,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
    unit: str = "",
) -> None:
    """Require that a value is what it should be, within a tolerance.

    Args:
        sentence: the likely mistake, for the learner; a hint how far off the value is gets appended.
        measured: what came out: a number, a tensor, a list, a dict, …
        expected: what it should be. A tuple expects a tuple or a list.
        relative, absolute: tolerances for numbers and tensors, as in ``math.isclose``; 0.05 is 5 %.
        unit: shown behind the numbers, for example "bytes".

    Raises:
        Wrong: with the sentence, the distance, and both values.
    """
    distance = how_far(measured, expected, relative=relative, absolute=absolute)
    if distance is None:
        return
    raise Wrong(
        f"{sentence.rstrip('. ')}: {distance}",
        measured=_with_unit(measured, unit),
        expected=_with_unit(expected, unit),
    )


def how_far(measured: Any, expected: Any, *, relative: float = 0.0, absolute: float = 0.0) -> str | None:
    """None if the values agree within the tolerance, else a phrase such as "2.0 times too large".

    Args:
        measured, expected: numbers, tensors, text, or lists, tuples and dicts of them.
        relative, absolute: tolerances for numbers and tensors.
    """
    if _is_tensor(expected) or _is_tensor(measured):
        return _tensor_distance(measured, expected, relative, absolute)
    if _is_number(expected):
        if not _is_number(measured):
            return f"not a number but {_kind(measured)}"
        return _number_distance(measured, expected, relative, absolute)
    if isinstance(expected, list | tuple):
        if not isinstance(measured, list | tuple):
            return f"not a {type(expected).__name__} but {_kind(measured)}"
        if len(measured) != len(expected):
            return f"{len(measured)} entries instead of {len(expected)}"
        pairs = [(f"entry {index}", *pair) for index, pair in enumerate(zip(measured, expected, strict=True))]
    elif isinstance(expected, dict):
        if not isinstance(measured, dict):
            return f"not a dict but {_kind(measured)}"
        if missing := [key for key in expected if key not in measured]:
            return f"{shorten(missing[0])} is missing"
        if extra := [key for key in measured if key not in expected]:
            return f"{shorten(extra[0])} is too much"
        pairs = [(shorten(key), measured[key], expected[key]) for key in expected]
    else:
        same = type(measured) is type(expected) and measured == expected
        return None if same else f"{shorten(measured, 60)} instead of {shorten(expected, 60)}"
    for name, one, other in pairs:
        if (distance := how_far(one, other, relative=relative, absolute=absolute)) is not None:
            return f"{name} is {distance}"
    return None


def _number_distance(measured: Any, expected: Any, relative: float, absolute: float) -> str | None:
    if isinstance(expected, bool) or isinstance(measured, bool):
        return None if measured is expected else f"{measured} instead of {expected}"
    if isinstance(measured, complex) or isinstance(expected, complex):
        close = abs(measured - expected) <= max(absolute, relative * abs(expected))
        return None if close else "a different complex number"
    if math.isnan(measured) and not math.isnan(expected):
        return "not a number (nan)"
    # The tolerance is relative to what is expected, not to the larger one: 5 % means 5 % of the right value.
    if measured == expected or abs(measured - expected) <= max(absolute, relative * abs(expected)):
        return None
    if not expected or not math.isfinite(measured) or measured * expected <= 0:
        return f"{measured:.4g} instead of {expected:.4g}"
    ratio = measured / expected
    if ratio >= 1.5:
        return f"{_round(ratio)} times too large"
    if ratio <= 1 / 1.5:
        return f"{_round(1 / ratio)} times too small"
    percent = abs(ratio - 1) * 100
    return f"{percent:.2g} % too {'large' if ratio > 1 else 'small'}"


def _tensor_distance(measured: Any, expected: Any, relative: float, absolute: float) -> str | None:
    import torch

    if not _is_tensor(measured):
        return f"not a tensor but {_kind(measured)}"
    expected = torch.as_tensor(expected)
    if measured.shape != expected.shape:
        return f"of shape {list(measured.shape)} instead of {list(expected.shape)}"
    if measured.dtype != expected.dtype:
        return f"of type {measured.dtype} instead of {expected.dtype}"
    if torch.equal(measured, expected) or not expected.numel():
        return None
    kind = torch.complex128 if expected.dtype.is_complex else torch.float64
    one, other = measured.to(kind).reshape(-1), expected.to(kind).reshape(-1)
    excess = (one - other).abs() - (other.abs() * relative).clamp(min=absolute)
    excess = torch.where(one.isnan() & ~other.isnan(), torch.inf, excess).nan_to_num(nan=-1.0, posinf=torch.inf)
    wrong = int((excess > 0).sum())
    if not wrong:
        return None
    worst = int(excess.argmax())
    place, rest = [], worst
    for size in reversed(expected.shape):
        rest, index = divmod(rest, size)
        place.insert(0, index)
    return (
        f"different in {wrong:,} of {expected.numel():,} elements, most in element {place}: "
        f"{measured.reshape(-1)[worst].item():.6g} instead of {expected.reshape(-1)[worst].item():.6g}"
    )


def _round(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def _with_unit(value: Any, unit: str) -> Any:
    if not unit or not _is_number(value):
        return value
    return f"{value:,} {unit}" if isinstance(value, int) else f"{value:.4g} {unit}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {shorten(value, 40)}"
