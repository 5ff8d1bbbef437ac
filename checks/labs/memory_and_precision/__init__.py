"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

accounting.py     account: bytes on a GPU, from a model on the CPU
recomputing.py    checkpointed: what is held, computed and drawn again on a simulated GPU
scaling.py        scaler: scales, skipped steps and gradients
shares.py         utilization: MFU and HFU of measured steps
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.memory_and_precision import accounting, recomputing, scaling, shares


@exercise(title="Account for a step", difficulty=2, minutes=20, official=accounting.OFFICIAL)
def account(account: Any) -> dict[str, Any]:
    """Judge ``account(model, inputs, loss, state)``, the bytes of a step on a GPU."""
    return judge(accounting.OFFICIAL, accounting.play, accounting.CASES, account)


@exercise(title="Compute it again", difficulty=3, minutes=30, official=recomputing.OFFICIAL)
def checkpointed(checkpointed: Any) -> dict[str, Any]:
    """Judge ``checkpointed(function, *tensors)``, which keeps only the tensors."""
    return judge(recomputing.OFFICIAL, recomputing.play, recomputing.CASES, checkpointed)


@exercise(title="A loss scaler", difficulty=2, minutes=25, official=scaling.OFFICIAL)
def scaler(LossScaler: Any) -> dict[str, Any]:
    """Judge the class ``LossScaler(scale, growth, backoff, interval)``."""
    return judge(scaling.OFFICIAL, scaling.play, scaling.CASES, LossScaler)


@exercise(title="What share of the GPU", difficulty=2, minutes=20, official=shares.OFFICIAL)
def utilization(utilization: Any) -> dict[str, Any]:
    """Judge ``utilization(model, sequences, length, again, gpus, seconds, peak)``, a pair of MFU and HFU."""
    return judge(shares.OFFICIAL, shares.play, shares.CASES, utilization)
