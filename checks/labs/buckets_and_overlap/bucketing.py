"""Check of ``Bucketed``: which gradients share a bucket, and when each bucket starts, in one order on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise
from checks.engine.watching import explained
from checks.labs.ddp_and_bucketing.training import BOTH, MEANS, Network, hidden

FULL = "            if sum(p.nbytes for p in self.buckets[number]) >= cap:\n"
OPEN = "            number = is_open.setdefault"
MISSING = "        self.missing = [len(bucket) for bucket in self.buckets]\n"
TRAVELLING = "        self.travelling = []\n"
WHILE = "        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:\n"
NEXT = "            bucket = self.buckets[len(self.travelling)]\n"
CLEAR = "        self.travelling.clear()\n"
FINISH = "    def finish(self):\n"
REST = FINISH + "        while len(self.travelling) < len(self.buckets):\n            self.launch()\n"
OFFICIAL = Reference("buckets_and_overlap", "Bucketed", {
    "the buckets are filled from the first parameter to the last: gradients come the other way round":
        {"reversed(list(model.parameters()))": "model.parameters()"},
    "a bucket closes before it would exceed the cap: it closes when it holds the cap or more": {
        OPEN: "            last = is_open.get(parameter.dtype)\n            if last is not None and "
              "sum(p.nbytes for p in self.buckets[last]) + parameter.nbytes > cap:\n"
              "                del is_open[parameter.dtype]\n" + OPEN, ">= cap": "> cap"},
    "a bucket that holds exactly the cap is full: it closes when its bytes are >= the cap, not >": {">= cap": "> cap"},
    "the cap counts bytes, not elements": {FULL: FULL.replace("nbytes", "numel()")},
    "the cap counts bytes, and an element has not always 4 of them: a parameter's bytes are its `nbytes`":
        {FULL: FULL.replace("p.nbytes", "4 * p.numel()")},
    "gradients of different types share a bucket: each type has buckets of its own": {"parameter.dtype": "None"},
    "a bucket closes as soon as a parameter of another type comes: each type keeps an open bucket of its own":
        {OPEN: "            is_open = {d: n for d, n in is_open.items() if d == parameter.dtype}\n" + OPEN},
    "the buckets are in the order in which they were filled: number them in the order in which they were opened": {
        FULL: FULL.replace(">= cap", ">= cap and is_full.append(number) is None"),
        "        self.buckets, self": "        is_full = []\n        self.buckets, self",
        MISSING + TRAVELLING:
            "        order = is_full + [n for n in range(len(self.buckets)) if n not in is_full]\n"
            "        self.buckets = [self.buckets[n] for n in order]\n"
            "        self.number = {p: n for n, bucket in enumerate(self.buckets) for p in bucket}\n"
            + MISSING + TRAVELLING},
    "the tied weight is in the buckets twice: it has two names, but it is one tensor with one gradient":
        {"list(model.parameters())": "[p for _, p in model.named_parameters(remove_duplicate=False)]"},
    "each parameter has an all_reduce of its own: put a bucket's gradients into one tensor, and start that one":
        {FULL: "            if True:\n"},
    "a bucket starts in another order than 0, 1, …: it also waits for all buckets before it":
        {WHILE: "        if self.missing[self.number[parameter]] == 0:\n",
         NEXT: "            bucket = self.buckets[self.number[parameter]]\n"},
    "all buckets start when the last gradient is ready: then nothing is left to hide them behind":
        {WHILE: "        if any(self.missing):\n            return\n" + WHILE},
    "a bucket starts too late: when one has gone, look whether the next one is ready as well (while, not if)":
        {WHILE: "        if len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:\n"
                "            self.launch()\n\n    def launch(self):\n        if True:\n", FINISH: REST},
    "the counts are not set back for the next step: there nothing travels": {MISSING + CLEAR: CLEAR},
    **MEANS,
    "the mean does not arrive in `.grad`": {"p.grad.copy_(part.view_as(p))": "pass"},
})  # fmt: skip
CASES = [
    {"cap": 72, "branches_reversed_on_odd_ranks": False, "seed": 3},  # here each mistake shows
    {"cap": 40, "branches_reversed_on_odd_ranks": True, "seed": 1},
]


@exercise(OFFICIAL, CASES, title="Buckets", difficulty=3, minutes=40, ranks=(3, 2))
def buckets(case: dict[str, Any], Bucketed: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``Bucketed(model, cap)`` with its method ``finish()``."""
    models = [Network(10 * case["seed"] + number, branches=4, types=BOTH) for number in range(2)]
    for model in models if case["branches_reversed_on_odd_ranks"] and dist.get_rank() % 2 else ():
        model.order.reverse()
    wrapped, found = [Bucketed(model, case["cap"]) for model in models], {}
    for number, which in enumerate((0, 1, 0)):  # two objects live side by side
        about, model = f"in step {number + 1}, of model {'AB'[which]}", models[which]
        words = "Gradients may be ready in another order on another rank: start bucket 0, then bucket 1, …"
        with explained(words):
            seen = model.step(about, wrapped[which].finish, number)
        hidden(model.calls, model.ready)
        found[f"{about}, the bytes of each all_reduce"] = [f"{c['bytes']} ({c['dtype']})" for c in model.calls]
        found[f"{about}, the gradients that are ready when each starts"] = [c["ready"] for c in model.calls]
        found |= seen
    return found
