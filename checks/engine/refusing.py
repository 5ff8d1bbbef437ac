"""What a check says about one call: refuse it, ask what it has left as it was, compare what came back."""

from __future__ import annotations

import contextlib
import math
import numbers
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from checks.engine.plain import bits, from_array, shorten
from checks.engine.verdicts import Wrong

UNITS, COARSEST = 1_000, 0.03
"""Numbers are the same within so many units in the last place of the largest, whatever the order of summing up."""


def refuse(wrong: Any, sentence: str, **figures: Any) -> None:
    """Refuse the answer if ``wrong``, with a true sentence. ``figures``: ``measured`` and ``expected``.

    Raises:
        Wrong: it is.
    """
    if wrong:
        raise Wrong(sentence, **figures)


@contextlib.contextmanager
def leaves(**things: Any) -> Iterator[None]:
    """Around a learner's call: these arguments, modes and the random generators have to be afterwards as before.

    Raises:
        Wrong: naming what is not.
    """

    def state() -> dict[str, Any]:
        found = {f"`{name}`": _as_it_is(thing) for name, thing in things.items()}
        found["the state of torch's random generator"] = bits(torch.get_rng_state()).tolist()
        found["the state of Python's random generator"] = random.getstate()
        _, keys, place, *_ = numpy.random.get_state()
        found["the state of numpy's random generator"] = from_array(keys), place
        found["whether gradients are recorded"] = torch.is_grad_enabled()
        found["the default data type"] = torch.get_default_dtype()
        return found

    before = state()
    yield
    changed = [name for name, value in state().items() if value != before[name]]
    instead = "take a generator of your own" if any("generator" in name for name in changed) else "or work on a copy"
    refuse(changed, f"your function changes {' and '.join(changed)}: leave it as it was, {instead}")


def _as_it_is(thing: Any) -> Any:
    """Numbers and modes of a thing, to be compared later."""
    if isinstance(thing, torch.nn.Module):
        tensors = dict(thing.named_parameters()) | dict(thing.named_buffers())
        return _as_it_is(tensors), [module.training for module in thing.modules()]
    if isinstance(thing, torch.Tensor):
        gradient = _as_it_is(thing.grad) if thing.is_leaf and thing.grad is not None else None
        return str(thing.dtype), list(thing.shape), thing.requires_grad, bits(thing).tolist(), gradient
    if isinstance(thing, Mapping):
        return {name: _as_it_is(one) for name, one in thing.items()}
    if isinstance(thing, list | tuple):
        return [_as_it_is(one) for one in thing]
    return repr(thing)


def named(result: Any, count: str, labels: Sequence[str]) -> dict[str, Any]:
    """The numbers of a result by their labels; refused if it is not a tuple, list or array of so many."""
    found = from_array(result)
    fine = isinstance(found, list | tuple) and len(found) == len(labels)
    refuse(not fine, f"the result is not {count} numbers: {', '.join(labels)}", measured=shorten(found))
    return {label: from_array(one) for label, one in zip(labels, found, strict=True)}


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same but for rounding. List, tuple and array are the same; so are 2 and 2.0."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = one.detach(), other.detach()
        if not one.is_floating_point():
            return torch.equal(one, other)
        wide, right = one.double(), other.double()
        largest = float(right[right.isfinite()].abs().max()) if bool(right.isfinite().any()) else 0.0
        bound = min(UNITS * torch.finfo(one.dtype).eps, COARSEST) * largest
        return bool(torch.isclose(wide, right, rtol=0, atol=bound, equal_nan=True).all())
    one, other = from_array(one), from_array(other)
    if isinstance(one, numbers.Real) and isinstance(other, numbers.Real):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12) or (one != one and other != other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | range) and isinstance(other, list | tuple | range):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def difference(seen: Any, expected: Any) -> tuple[str, str]:
    """Of two values that are not the same, what a sentence shows: where they differ, if there is such a place."""
    if isinstance(seen, torch.Tensor) and isinstance(expected, torch.Tensor):
        if seen.shape != expected.shape or seen.dtype != expected.dtype:
            kinds = [f"{list(one.shape)}, {str(one.dtype)[6:]}" for one in (seen, expected)]
            return kinds[0], kinds[1]
        wide, other = seen.detach().double(), expected.detach().double()
        away = (wide - other).abs().nan_to_num(math.inf) if seen.is_floating_point() else (seen != expected).int()
        place = int(away.argmax())
        where = [int(one) for one in torch.unravel_index(torch.tensor(place), seen.shape)]
        at = f"at {where} " if where else ""
        pair = seen.flatten()[place].item(), expected.flatten()[place].item()
        if not seen.is_floating_point():
            return f"{at}{pair[0]}", f"{pair[1]}"
        digits = 6 if f"{pair[0]:.6g}" != f"{pair[1]:.6g}" else 17
        return f"{at}{pair[0]:.{digits}g}", f"{pair[1]:.{digits}g}"
    if isinstance(seen, Sequence) and isinstance(expected, Sequence) and not isinstance(seen, str):
        if len(seen) == len(expected):
            place = next(number for number, pair in enumerate(zip(seen, expected, strict=True)) if not same(*pair))
            measured, right = difference(seen[place], expected[place])
            return f"at place {place}: {measured}", right
        return f"{len(seen)} of them: {shorten(seen)}", f"{len(expected)}: {shorten(expected)}"
    return shorten(seen), shorten(expected)
