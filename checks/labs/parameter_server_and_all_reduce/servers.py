"""Check of ``Server``: who has to wait, how stale a gradient is, and weights that stay in a worker's hands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.plain import from_array, kind_of, number

UPDATE = "        self.weights = self.weights - self.lr * gradient"
SINCE = "        self.updates_at_pull[worker] = self.updates\n"
OFFICIAL = Reference("parameter_server_and_all_reduce", "Server", {
    "the staleness has its own update in it: count before its own is applied":
        {"return staleness": "return staleness + 1"},
    "the staleness counts from the worker's last push: count the updates since its pull":
        {SINCE: "", "        self.steps[worker] += 1\n": "        self.steps[worker] += 1\n" + SINCE},
    "the staleness is how many steps a worker is ahead: count the updates between its pull and its push":
        {"self.updates - self.updates_at_pull[worker]": "self.steps[worker] - min(self.steps)"},
    "the staleness counts updates of all workers from the beginning: count those since the worker's pull":
        {"self.updates - self.updates_at_pull[worker]": "self.updates"},
    "a late gradient is not applied: apply it, however late it is":
        {"self.lr * gradient": "self.lr * gradient * (staleness <= self.bound)"},
    "only fresh gradients are applied: apply each, however late it is":
        {"self.lr * gradient": "self.lr * gradient * (staleness < 2)"},
    "a gradient is divided by the number of workers: the server applies each one as it is":
        {"self.lr * gradient": "self.lr / len(self.steps) * gradient"},
    "a gradient is divided by its staleness: the server applies each one as it is":
        {"self.lr * gradient": "self.lr / (1 + staleness) * gradient"},
    "gradients are applied when all workers have pushed: apply each at once":
        {UPDATE: "        self.late = [*getattr(self, 'late', []), self.lr * gradient]\n"
                 "        if len(self.late) == len(self.steps):\n"
                 "            self.weights, self.late = self.weights - sum(self.late), []"},
    "the gradients are added: subtract them": {"self.weights - self.lr": "self.weights + self.lr"},
    "the learning rate is left out": {"self.lr * gradient": "gradient"},
    "the learning rate is rounded to float32 on its way": {"self.lr * gradient": "torch.tensor(self.lr) * gradient"},
    "the update is rounded to float32 on its way": {"self.lr * gradient": "(self.lr * gradient).float()"},
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
    players, both = [], case["schedule"] == "any order"
    for i in range(1 + both):  # the second one has other numbers
        weights = torch.randn([1 + case["seed"] % 3, 2][: 2 - i], dtype=torch.float64)
        players.append(_Player(Server, weights, max(1, case["workers"] - i), case["bound"] + i, case["lr"] + i))
    seen: dict[str, Any] = {}
    with leaves():
        for i, step in enumerate(_order(case)):
            player, worker = players[both and i % 3 == 2], max(step, -1 - step)
            steps = f"call {i + 1}, steps pushed {player.steps}"
            if step == worker < len(player.steps):
                seen[f"pull({worker}), {steps}"] = player.pull(worker)
            elif step != worker and worker in player.held:
                seen[f"the staleness that push({worker}, …) returns, {steps}"] = player.push(worker)
    return seen


class _Player:
    """A server, and what its workers have in their hands."""

    def __init__(self, Server: Callable[..., Any], weights: torch.Tensor, workers: int, bound: int, lr: float) -> None:
        self.given, self.first, self.bound = weights, weights.clone(), bound
        self.server, self.steps = Server(weights, workers, bound, lr), [0] * workers
        self.dice = torch.Generator().manual_seed(len(weights))
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def pull(self, worker: int) -> Any:
        got = self.server.pull(worker)
        refuse(not self.given.equal(self.first), "the weights that the server was given have changed: copy them")
        words = "pull returns neither weights nor None"
        refuse(got is not None and not isinstance(got, torch.Tensor), words, measured=kind_of(got))
        ahead, waits = self.steps[worker] - min(self.steps), got is None
        if waits != (ahead > self.bound):
            told = f"worker {worker} {'has to wait' if waits else 'goes on'}, {ahead} steps ahead of the slowest"
            told += f"; steps pushed: {self.steps}"
            refuse(True, self._why(worker, waits), measured=told, expected=f"bound {self.bound}")
        if got is not None:
            self.held[worker] = got, got.detach().clone()
        return "wait" if got is None else got.detach().clone()

    def push(self, worker: int) -> int:
        weights, before = self.held.pop(worker)
        gradient = torch.randn(self.first.shape, generator=self.dice, dtype=self.first.dtype)
        words = f"the weights that worker {worker} has pulled have changed in its hands: give each worker a copy, or "
        refuse(not same(weights, before), words + "do not change the server's tensor in place")
        was = gradient.clone()
        got = from_array(self.server.push(worker, gradient))
        refuse(not gradient.equal(was), "push changes the gradient that it was given: it belongs to the worker")
        refuse(number(got, whole=True) is None, "push returns no int: it returns the staleness", measured=kind_of(got))
        gradient.zero_()  # the worker needs its place for the next one
        self.steps[worker] += 1
        return got

    def _why(self, worker: int, waits: bool) -> str:
        """The likely mistake of a server that lets a worker wait, or go on, and should not."""
        ahead = self.steps[worker] - min(self.steps)
        if waits and not ahead:
            if max(self.steps) > self.bound:
                return "the slowest worker has to wait too: then nobody ever goes on"
            return "a worker that is not ahead has to wait: a step counts when it is pushed, not when it is pulled"
        if waits and ahead == self.bound == 1:
            return (
                "the bound is one too narrow (1 ahead may go on), or is that synchronous training, whatever the bound?"
            )
        if waits and ahead == self.bound:
            return "the bound is one too narrow: a worker that is exactly `bound` steps ahead may still go on"
        if waits:
            return "a worker has to wait that is no more than `bound` steps ahead of the slowest"
        words = (
            "a worker goes on that is more than `bound` steps ahead: compare the steps that it has pushed with those "
        )
        return words + "of the slowest worker. A worker has taken a step when it pushes, not when it pulls"
