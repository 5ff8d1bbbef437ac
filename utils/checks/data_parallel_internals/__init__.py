"""The exercises of this lab: data parallelism out of four steps. Each module holds a contract.

scattering.py   scatter: rows to their GPUs
replicas.py     replicate: the model's tensors, on all GPUs
nets.py         in the rank: the models
"""

from __future__ import annotations

from typing import Any

from utils.checks.contracts import judge
from utils.checks.data_parallel_internals import replicas, scattering
from utils.checks.framework import exercise


@exercise(title="Scatter the batch", difficulty=1, minutes=10)
def scatter(scatter_batch: Any) -> dict[str, Any]:
    """Judge ``scatter_batch(batch, devices)``, which returns a list of parts, each on its GPU."""
    return judge(scattering.CONTRACT, scatter_batch)


@exercise(title="Replicate the model", difficulty=2, minutes=15)
def replicate(replicate_model: Any) -> dict[str, Any]:
    """Judge ``replicate_model(model, devices)``, which returns for each GPU a dict of names and tensors."""
    return judge(replicas.CONTRACT, replicate_model)
