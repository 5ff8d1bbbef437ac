"""Check of ``Server``: who has to wait, how stale a gradient is, and weights that stay in a worker's hands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.plain import from_array, kind_of, number

UPDATE = "        self.weights = self.weights - self.lr * gradient"
SINCE, STEP = "        self.updates_at_pull[worker] = self.updates\n", "        self.steps[worker] += 1\n"
BEHIND = "self.steps[worker] - min(self.steps)"
OFFICIAL = Reference("parameter_server_and_all_reduce", "Server", {
    "the bound is one too narrow: a worker that is exactly `bound` steps ahead may still go on":
        {"> self.bound": ">= self.bound"},
    "a worker goes on that is more than `bound` steps ahead of the slowest": {"> self.bound": "> self.bound + 1"},
    "a worker has to wait as soon as it is ahead: that is synchronous training, whatever the bound":
        {"> self.bound": "> 0"},
    "the slowest worker has to wait too: then nobody ever goes on": {BEHIND: "max(self.steps) - min(self.steps)"},
    "a worker has taken a step when it pushes, not when it pulls": {STEP: "", SINCE: SINCE + STEP},
    "the staleness has its own update in it: count before its own is applied":
        {"return staleness": "return staleness + 1"},
    "the staleness counts from the worker's last push: count the updates since its pull":
        {SINCE: "", STEP: STEP + SINCE},
    "the staleness is how many steps a worker is ahead: count the updates between its pull and its push":
        {"self.updates - self.updates_at_pull[worker]": BEHIND},
    "a late gradient is not applied: apply it, however late it is":
        {"self.lr * gradient": "self.lr * gradient * (staleness <= self.bound)"},
    "a gradient is divided by the number of workers: the server applies each one as it is":
        {"self.lr * gradient": "self.lr / len(self.steps) * gradient"},
    "a gradient is divided by its staleness: the server applies each one as it is":
        {"self.lr * gradient": "self.lr / (1 + staleness) * gradient"},
    "gradients are applied when all workers have pushed: apply each at once":
        {UPDATE: "        self.late = [*getattr(self, 'late', []), self.lr * gradient]\n"
                 "        if len(self.late) == len(self.steps):\n"
                 "            self.weights, self.late = self.weights - sum(self.late), []"},
    "the server keeps the worker's gradient itself, whose memory the worker uses again: copy it":
        {UPDATE: "        self.late = [*getattr(self, 'late', []), gradient]",
         "        return self.weights\n": "        return self.weights - self.lr * sum(getattr(self, 'late', []))\n"},
})  # fmt: skip
_SCHEDULES = ("the lab's example", "worker 0 runs ahead", "worker 0 sleeps", "in step", "any order", "any order")


def draw(rng: random.Random, count: int) -> dict[str, Any]:
    """The lab's example first; in any order there are two servers."""
    schedule = _SCHEDULES[min(count, len(_SCHEDULES) - 1)]
    workers = {0: 2, 4: 2, 5: rng.randint(3, 7)}.get(count, rng.randint(2, 5))
    bound = {0: 1, 1: 2, 2: 12, 3: 0}.get(count, rng.randint(0, 4))
    lr = rng.choice((0.1, 0.3, 0.7)) if count else 0.5
    return {"schedule": schedule, "workers": workers, "bound": bound, "lr": lr, "seed": rng.randrange(2**31)}


def _order(case: dict[str, Any]) -> list[int]:
    """Worker w pulls: w; it pushes, if it has weights in its hands: −1 − w."""
    workers, rng = case["workers"], random.Random(case["seed"])
    others = range(1, workers)
    return {
        "the lab's example": [0, 1, -2, 1, -2, 1, -1, 1],
        "worker 0 runs ahead": [0, -1] * 7 + [1, 0, -2, *others, 0, *(-1 - w for w in others), 0, -1, 0],
        "worker 0 sleeps": [0, *[step for _ in range(14) for w in others for step in (w, -1 - w)], -1, 0],
        "in step": [*range(workers), *range(-1, -1 - workers, -1)] * 4,
        "any order": rng.choices(range(-workers, workers), rng.choices((1, 2, 6), k=workers) * 2, k=90),
    }[case["schedule"]]


@exercise(OFFICIAL, draw, title="A server with bounded staleness", difficulty=3, minutes=30, timeout=30)
def server(case: dict[str, Any], Server: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``Server(weights, workers, bound, lr)`` with its methods ``pull`` and ``push``."""
    torch.manual_seed(case["seed"])
    both, seen = case["schedule"] == "any order", dict[str, Any]()
    players = [_Player(Server, case["workers"], case["bound"], case["lr"])]
    if both:  # another one, with other numbers
        players.append(_Player(Server, max(1, case["workers"] - 1), case["bound"] + 1, case["lr"] + 1))
    with leaves():
        for i, step in enumerate(_order(case)):
            player, worker = players[both and i % 3 == 2], max(step, -1 - step)
            steps = f"in call {i + 1}, with bound {player.bound} and pushed steps {player.steps}"
            if step == worker < len(player.steps):
                seen[f"what pull({worker}) returns {steps}"] = player.pull(worker)
            elif step != worker and worker in player.held:
                seen[f"the staleness that push({worker}, …) returns {steps}"] = player.push(worker)
    return seen


class _Player:
    """A server, and what its workers have in their hands."""

    def __init__(self, Server: Callable[..., Any], workers: int, bound: int, lr: float) -> None:
        self.given = torch.randn(workers, 2, dtype=torch.float64)
        self.first, self.bound, self.steps = self.given.clone(), bound, [0] * workers
        self.server = Server(self.given, workers, bound, lr)
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def pull(self, worker: int) -> Any:
        weights = self.server.pull(worker)
        refuse(not self.given.equal(self.first), "the weights that the server was given have changed: copy them")
        if weights is None:
            return "None: it has to wait"
        refuse(
            not isinstance(weights, torch.Tensor), "pull returns neither weights nor None", measured=kind_of(weights)
        )
        self.held[worker] = weights, weights.detach().clone()
        return self.held[worker][1]

    def push(self, worker: int) -> int:
        weights, before = self.held.pop(worker)
        fault = f"the weights that worker {worker} has pulled have changed in its hands: give each worker a copy, or "
        refuse(not same(weights, before), fault + "do not change the server's tensor in place")
        was = torch.sin(before + len(self.steps) + sum(self.steps))
        gradient = was.clone()
        staleness = from_array(self.server.push(worker, gradient))
        refuse(not gradient.equal(was), "push changes the gradient that it was given: it belongs to the worker")
        fault = "push returns no int: it returns the staleness"
        refuse(number(staleness, whole=True) is None, fault, measured=kind_of(staleness))
        gradient.zero_()  # the worker needs its place for the next one
        self.steps[worker] += 1
        return staleness
