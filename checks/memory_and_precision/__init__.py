"""The exercises of this lab: a step's bytes, activation checkpointing, a loss scaler, the largest batch.

accounting.py     account: bytes on a GPU, from a model on the CPU; networks.py: what it is tried on
recomputing.py    checkpointed: what is held, computed and drawn again on a simulated GPU
scaling.py        scaler: scales, skipped steps and gradients, beside a model of what has to happen
batches.py        largest: the largest batch, and no step that runs out of memory
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.framework import exercise
from checks.memory_and_precision import accounting, batches, recomputing, scaling


@exercise(title="Account for a step", difficulty=2, minutes=20)
def account(account: Any) -> dict[str, Any]:
    """Judge ``account(model, inputs, loss, state)``, the bytes of a step on a GPU."""
    return judge(accounting.CONTRACT, account)


@exercise(title="Compute it again", difficulty=3, minutes=30)
def checkpointed(checkpointed: Any) -> dict[str, Any]:
    """Judge ``checkpointed(function, *tensors)``, which keeps only the tensors."""
    return judge(recomputing.CONTRACT, checkpointed)


@exercise(title="A loss scaler", difficulty=2, minutes=25)
def scaler(LossScaler: Any) -> dict[str, Any]:
    """Judge the class ``LossScaler(scale, growth, backoff, interval)``."""
    return judge(scaling.CONTRACT, LossScaler)


@exercise(title="The largest batch", difficulty=2, minutes=20)
def largest(largest_batch: Any) -> dict[str, Any]:
    """Judge ``largest_batch(peak, capacity)``, which never runs out of memory."""
    return judge(batches.CONTRACT, largest_batch)
