"""The exercises of this lab: DistributedDataParallel, one property after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks import exercise, run
from utils.checks.ddp_and_bucketing import probes
from utils.checks.ddp_and_bucketing.loop import Training
from utils.checks.verdicts import raised_from

SECONDS = 30  # for each launch; only ranks that really hang take all of them


def _found(probe: Callable[..., Any], *arguments: Any, ranks: int) -> Any:
    """What a probe finds."""
    found = run(probe, *arguments, ranks=ranks, timeout=SECONDS)[0]
    if "wrong" in found:
        raise raised_from(found["wrong"])
    return found["figures"]


EVERYTHING = tuple(Training("Everything", name) for name in ("SGD with momentum", "Adam", "AdamW"))


@exercise(title="Same start, same gradients", difficulty=1, minutes=20)
def average(broadcast_state: Any, average_gradients: Any) -> dict[str, Any]:
    """Judge ``broadcast_state(model)`` and ``average_gradients(model)``: DDP without overlap."""
    arguments = broadcast_state, average_gradients
    found = _found(probes.averages, *arguments, EVERYTHING, ranks=3)
    _found(probes.averages, *arguments, EVERYTHING[:1], ranks=2)
    return {
        "broadcast at the start": f"{found['broadcast']:,} bytes",
        "all-reduced in each step": f"{found['all_reduce']:,} bytes",
        "same as one process with": ", ".join(training.optimizer for training in EVERYTHING),
    }


@exercise(title="Overlap with hooks", difficulty=2, minutes=25)
def overlap(Overlapped: Any) -> dict[str, Any]:
    """Judge the class ``Overlapped(model)`` with its method ``finish()``: one all-reduce for each parameter."""
    trainings = (Training("Everything", "Adam"), Training("Branches", "SGD with momentum"))
    found = _found(probes.overlapped, Overlapped, trainings, ranks=3)
    _found(probes.overlapped, Overlapped, trainings[:1], ranks=2)
    count, first, last = found[repr(trainings[0])]
    return {
        "all-reduces in each step": count,
        "gradients ready at the first launch": f"{first} of {last}",
        "waits inside backward": 0,
    }


CAPS = (500, 1, 1500, 10**6)


@exercise(title="Buckets", difficulty=3, minutes=40)
def buckets(Bucketed: Any) -> dict[str, Any]:
    """Judge the class ``Bucketed(model, cap)`` with its method ``finish()``."""
    optimizers = ("SGD with momentum", "AdamW", "Adam", "SGD with momentum")
    same = tuple(Training("Branches", how, cap) for how, cap in zip(optimizers, CAPS, strict=True))
    other = tuple(Training("Branches", how, cap, other_order=True) for how, cap in (("Adam", 1), ("AdamW", 500)))
    found = _found(probes.overlapped, Bucketed, (*same, *other), ranks=2)
    _found(probes.overlapped, Bucketed, other[1:], ranks=3)
    return {
        "all-reduces by cap": ", ".join(f"{one.cap:,} bytes: {found[repr(one)][0]}" for one in same),
        "gradients ready at the first launch": "{1} of {2}".format(*found[repr(same[0])])
        + f" (cap {same[0].cap} bytes)",
        "ranks with another order": "launch in the same order",
    }


@exercise(title="no_sync", difficulty=2, minutes=20)
def no_sync(Accumulating: Any) -> dict[str, Any]:
    """Judge the class ``Accumulating(model)`` with its methods ``finish()`` and ``no_sync()``."""
    trainings = (Training("Everything", "SGD with momentum"), Training("Everything", "AdamW"))
    found = _found(probes.accumulating, Accumulating, trainings, ranks=3)
    return {
        "micro-batches without a collective": found["silent"],
        "synchronised": found["steps"],
        "all-reduced in each of these": f"{found['bytes']:,} bytes",
    }


@exercise(title="Unused parameters", difficulty=2, minutes=25)
def unused(average_used: Any) -> dict[str, Any]:
    """Judge ``average_used(model)``, for models of which each rank uses another part."""
    trainings = (Training("Optional", "AdamW"), Training("Optional", "SGD with momentum"))
    found = _found(probes.unused, average_used, trainings, ranks=3)
    _found(probes.unused, average_used, trainings[:1], ranks=2)
    return {
        "steps": found["steps"],
        "all-reduces in a step": f"at most {found['most']}, for {found['trainable']} parameters",
        "parameters that nobody used": "keep None",
    }
