"""Check of ``Tracker`` and ``predict``: what a model counts in its forward is there after a step of DataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from checks.engine import Reference, gpus, refuse
from checks.labs.data_parallel_internals.models import rows
from checks.labs.data_parallel_internals.simulated import cluster, values

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
    "the sum holds the rows of all GPUs, and the count only those of the first":
        {OUT: "self.rows += len(x)\n        " + OUT, "\n    parallel.module.rows += len(x)": ""},
    "the sums of the GPUs were averaged: add them up": {"sums.sum(0)": "sums.mean(0)"},
    "the sum is that of the last batch alone: add to what is there": {"total += sums": "total[:] = sums"},
    "the count is that of the last batch alone: add to what is there": {"rows += len(x)": "rows.fill_(len(x))"},
    "the first layer learns nothing: detach what goes into the statistics, not the hidden values themselves":
        {"self.head(hidden)": "self.head(hidden.detach())"},
})  # fmt: skip
CASES = [
    {"devices": [0, 1, 2, 3], "batches": [8, 8]},
    {"devices": [2, 0, 1], "batches": [7, 5, 2]},
    {"devices": [1], "batches": [3, 4]},
]


def play(case: dict[str, Any], Tracker: Any, predict: Any) -> dict[str, Any]:
    devices = cluster(case["devices"])
    torch.manual_seed(0)
    model = gpus.put(Tracker(), devices[0])
    wanted = {"first.weight", "head.weight", "total", "rows"}
    missing = wanted - {*dict(model.named_parameters()), *dict(model.named_buffers())}
    words = "Tracker's __init__ is not the one of the lab: leave its layers and buffers"
    refuse(missing, words, measured=sorted(missing))
    with torch.no_grad():
        for number, one in enumerate(model.parameters()):
            one.copy_((torch.arange(one.numel()) % 7 - 3 + number).view(one.shape) / 9)
    parallel, found = nn.DataParallel(model, devices), {}
    for number, count in enumerate(case["batches"], 1):
        with gpus.seen() as seen:
            logits = predict(parallel, rows(count, "float32", number))
        kind = type(logits).__name__
        refuse(not isinstance(logits, torch.Tensor), "predict returns no tensor of logits", measured=kind)
        found[f"the logits of batch {number}"] = values(logits)
        found[f"GPUs that compute for batch {number}"] = sum(flops > 0 for flops in seen["flops"]["forward"])
        refuse(not logits.requires_grad, "no gradient comes back: the logits know nothing of the model")
        logits.square().sum().backward()
    found["the model's `rows`"] = float(values(model.rows))
    found["the model's `total`"] = values(model.total)
    graph = model.total.requires_grad or model.rows.requires_grad
    refuse(graph, "the statistics keep the graphs of all steps alive: detach what you add")
    return found | {
        f"the gradient of `{n}`": values(one.grad) for n, one in model.named_parameters() if one.grad is not None
    }
