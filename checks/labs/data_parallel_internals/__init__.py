"""The exercises of this lab: data parallelism out of four steps.

scattering.py          scatter: rows to their GPUs
replicating.py         replicate: the model's tensors, on all GPUs
forwards.py            forward: all four steps
losses.py              loss: the loss where the logits are
gathering.py           gather: a backward of one's own
forgetting.py          forgotten: a fault to find, state that replicas lose
steps.py               what forward and loss share
simulated.py           GPUs for a case, and what crosses between them; models.py: a model
"""

from __future__ import annotations

from typing import Any

from checks import engine as core
from checks.engine.exercises import exercise
from checks.labs.data_parallel_internals import forgetting, forwards, gathering, losses, replicating, scattering
from checks.points import passed


@exercise(title="Scatter the batch", difficulty=1, minutes=10, official=scattering.OFFICIAL)
def scatter(scatter_batch: Any) -> dict[str, Any]:
    """Judge ``scatter_batch(batch, devices)``, which returns a list of parts, each on its GPU."""
    return core.judge(scattering.OFFICIAL, scattering.play, scattering.CASES, scatter_batch)


@exercise(title="Replicate the model", difficulty=2, minutes=15, official=replicating.OFFICIAL)
def replicate(replicate_model: Any) -> dict[str, Any]:
    """Judge ``replicate_model(model, devices)``, which returns for each GPU a dict of names and tensors."""
    return core.judge(replicating.OFFICIAL, replicating.play, replicating.CASES, replicate_model)


@exercise(title="Run the replicas, gather the outputs", difficulty=2, minutes=15, official=forwards.OFFICIAL)
def forward(data_parallel_forward: Any) -> dict[str, Any]:
    """Judge ``data_parallel_forward(model, batch, devices)``, which returns the output on the first GPU."""
    return core.judge(forwards.OFFICIAL, forwards.play, forwards.CASES, data_parallel_forward)


@exercise(
    title="Keep the loss in the replicas",
    difficulty=3,
    minutes=20,
    parts={"loss and gradients": 2, "memory": 1},
    official=losses.OFFICIAL,
)
def loss(data_parallel_loss: Any) -> dict[str, Any]:
    """Judge ``data_parallel_loss(model, batch, targets, devices)``: the mean cross-entropy, on the first GPU."""
    figures = core.judge(losses.OFFICIAL, losses.play, losses.CASES, data_parallel_loss)
    passed("loss and gradients")
    return {
        "cases": figures["cases"] + core.judge(losses.OFFICIAL, losses.hold, losses.MANY, data_parallel_loss)["cases"]
    }


@exercise(title="Gather, backward included", difficulty=3, minutes=20, official=gathering.OFFICIAL)
def gather(Gather: Any) -> dict[str, Any]:
    """Judge a subclass of ``torch.autograd.Function``: ``Gather.apply(device, *parts)``."""
    return core.judge(gathering.OFFICIAL, gathering.play, gathering.CASES, Gather)


@exercise(title="Who has forgotten?", difficulty=2, minutes=20, official=forgetting.OFFICIAL)
def forgotten(Tracker: Any, predict: Any) -> dict[str, Any]:
    """Judge ``Tracker``, a model that keeps statistics, and ``predict(parallel, x)``, which returns logits."""
    return core.judge(forgetting.OFFICIAL, forgetting.play, forgetting.CASES, Tracker, predict)
