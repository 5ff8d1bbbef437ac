"""Check of ``Tracker`` and ``predict``: what a model counts in its forward is there after a step of DataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from checks.engine import Reference, exercise, gpus, refuse
from checks.engine.plain import kind_of
from checks.labs.data_parallel_internals.models import cluster, rows, tensors, values

OUT = "return self.head(hidden), hidden.detach().sum(0, keepdim=True)"
GET = "logits, sums = parallel(x)\n    parallel.module.total += sums.sum(0)\n    parallel.module.rows += len(x)"
LOST = "return self.head(hidden)"
IN_PLACE = "self.total += hidden.detach().sum(0)\n        self.rows += len(x)\n        "
OFFICIAL = Reference("data_parallel_internals", "Tracker predict", {
    "what a forward gives a new value in `self` is lost: on several GPUs a replica runs it, and is thrown away":
        {OUT: IN_PLACE.replace("+= h", "= self.total + h").replace("+= l", "= self.rows + l") + LOST,
         GET: "logits = parallel(x)"},
    "only the rows of the first GPU count: of what replicas change in place, only GPU 0's is the model's own":
        {OUT: IN_PLACE + LOST, GET: "logits = parallel(x)"},
    "the sum is that of the last batch alone: add to what is there": {"total += sums": "total[:] = sums"},
    "the first layer learns nothing: detach what goes into the statistics, not the hidden values themselves":
        {"self.head(hidden)": "self.head(hidden.detach())"},
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "batches": [8, 8]},
    {"devices": [2, 0, 1], "batches": [7, 5, 2]},
    {"devices": [1], "batches": [3, 4]},
]


@exercise(OFFICIAL, CASES, title="Who has forgotten?", difficulty=2, minutes=20)
def forgotten(case: dict[str, Any], Tracker: Any, predict: Any) -> dict[str, Any]:
    """Judge ``Tracker``, a model that keeps statistics, and ``predict(parallel, x)``, which returns logits."""
    devices = cluster(case["devices"])
    model = Tracker()
    missing = {"first.weight", "head.weight", "total", "rows"} - tensors(model).keys()
    fault = "Tracker's __init__ is not the one of the lab: leave its layers and buffers"
    refuse(missing, fault, measured=sorted(missing))
    torch.manual_seed(0)
    for weight in model.parameters():
        nn.init.normal_(weight)
    parallel, found = nn.DataParallel(gpus.put(model, devices[0]), devices), {}
    for number, count in enumerate(case["batches"], 1):
        with gpus.seen() as seen:
            logits = predict(parallel, rows(count, "float32", number))
        refuse(not isinstance(logits, torch.Tensor), "predict returns no tensor of logits", measured=kind_of(logits))
        found[f"the logits of batch {number}"] = values(logits)
        found[f"GPUs that compute for batch {number}"] = sum(flops > 0 for flops in seen["flops"]["forward"])
        refuse(not logits.requires_grad, "no gradient comes back: the logits know nothing of the model")
        logits.square().sum().backward()
    found |= {"the model's `rows`": float(values(model.rows)), "the model's `total`": values(model.total)}
    graph = model.total.requires_grad or model.rows.requires_grad
    refuse(graph, "the statistics keep the graphs of all steps alive: detach what you add")
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return found | {f"the gradient of `{name}`": values(gradient) for name, gradient in gradients.items()}
