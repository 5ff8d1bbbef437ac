"""What the checks of this lab do with a learner's server: call it in a chosen order, then let real ranks call it.

In a chosen order everything is exact: who asks when is no matter of clocks, so who has to wait is not either. Weights
and gradients are small multiples of powers of two, so sums are exact in any order.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from utils.checks.inside import refuse_modules
from utils.checks.parameter_server_and_all_reduce.probes import COURSE_MODULES
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    import torch

LR = 0.125
MOST_STEPS = 40  # a worker that nobody stops is stopped here
EVENTS = 60  # in a schedule
Event = dict[str, Any]


def _weights(size: int = 3) -> torch.Tensor:
    import torch

    return torch.arange(size, dtype=torch.float64) * 4 - 2


def _gradient(worker: int, step: int) -> torch.Tensor:
    import torch

    return torch.tensor([worker + 1.0, step + 1.0, (worker + 1.0) * (step - 2.0)], dtype=torch.float64)


def _pulled(server: Any, worker: int) -> torch.Tensor | None:
    """What ``pull`` gives: weights, or None."""
    import torch

    got = server.pull(worker)
    if got is not None and not isinstance(got, torch.Tensor):
        raise Wrong(f"pull returns a {type(got).__name__}: it returns the weights, or None if the worker has to wait.")
    return got


def _pushed(server: Any, worker: int, gradient: torch.Tensor) -> int:
    """What ``push`` gives: the staleness."""
    before = gradient.clone()
    staleness = server.push(worker, gradient)
    if isinstance(staleness, bool) or not isinstance(staleness, int):
        kind = type(staleness).__name__
        raise Wrong(f"push returns {'None' if staleness is None else f'a {kind}'}: it returns the staleness, an int.")
    if not gradient.equal(before):
        raise Wrong("push changes the gradient that it was given: the worker may still need it.")
    return staleness


# --- a fast worker and one that sleeps -------------------------------------------------------------------------


def fast_worker(make: Any, bounds: tuple[int, ...]) -> list[dict[str, int]]:
    """For each bound: worker 0 takes steps as long as it may, worker 1 does nothing. Then worker 1 takes one step.

    Returns:
        ``alone``: the steps that worker 0 took first; ``then``: those that it took after the other's step.
    """
    found = []
    for bound in bounds:
        server = make(_weights(), 2, bound, LR)
        alone = _run_ahead(server, 0)
        asked = _pulled(server, 1)
        after_pull = _run_ahead(server, 0) if alone < MOST_STEPS else 0
        then = 0
        if asked is not None:
            _pushed(server, 1, _gradient(1, 0))
            then = _run_ahead(server, 0) if alone < MOST_STEPS else 0
        found.append({"alone": alone, "slow may": int(asked is not None), "after a pull": after_pull, "then": then})
    refuse_modules(*COURSE_MODULES)
    return found


def _run_ahead(server: Any, worker: int) -> int:
    for step in range(MOST_STEPS):
        if _pulled(server, worker) is None:
            return step
        _pushed(server, worker, _gradient(worker, step))
    return MOST_STEPS


# --- schedules -------------------------------------------------------------------------------------------------


def plays(make: Any, which: tuple[tuple[int, int, int], ...]) -> list[list[Event]]:
    """Play schedules (workers, bound, seed), and note at each event what the server did and what is right."""
    return [play(make, *one) for one in which]


def play(make: Any, workers: int, bound: int, seed: int) -> list[Event]:
    """Workers of different speeds ask in a random order. The play ends when pull and the rule differ.

    Returns:
        Events. "pull": ``worker``, ``done`` (steps of all workers), ``waits`` (whether the server says so), ``should``
        (whether it should), ``weights`` and ``right`` (None while waiting). "push": ``worker``, ``got`` and
        ``staleness``. "kept": a worker's weights have changed since it pulled them; ``worker``.
    """
    dice = random.Random(seed)
    server, true = make(_weights(), workers, bound, LR), _weights()
    done, held, version = [0] * workers, {}, 0  # held: weights in use, a copy of them, the version they have
    events: list[Event] = []
    speeds = [dice.choice((1, 2, 6)) for _ in range(workers)]
    for _ in range(EVENTS):
        worker = dice.choices(range(workers), speeds)[0]
        if worker in held:
            weights, copy, since = held.pop(worker)
            if not weights.equal(copy):
                events.append({"what": "kept", "worker": worker})
                break
            gradient = _gradient(worker, done[worker])
            got = _pushed(server, worker, gradient)
            events.append({"what": "push", "worker": worker, "got": got, "staleness": version - since})
            true, version = true - LR * gradient, version + 1
            done[worker] += 1
            continue
        got, should = _pulled(server, worker), done[worker] - min(done) > bound
        event = {"what": "pull", "worker": worker, "done": list(done), "waits": got is None, "should": should}
        events.append(event | {"weights": got if got is None else got.clone(), "right": true.clone()})
        if (got is None) != should:
            break
        if got is not None:
            held[worker] = got, got.clone(), version
    return events


# --- bound 0 ---------------------------------------------------------------------------------------------------


def in_step(make: Any, workers: int = 3, steps: int = 4) -> tuple[torch.Tensor | None, torch.Tensor]:
    """With bound 0, in each step first all workers pull, then all push; here the gradients depend on the weights.

    Returns:
        The last weights, and those of synchronous training.
    """
    server, true = make(_weights(), workers, 0, LR), _weights()
    for _ in range(steps):
        weights = [_pulled(server, worker) for worker in range(workers)]
        if any(one is None for one in weights):
            return None, true
        for worker, one in enumerate(weights):
            _pushed(server, worker, one - worker)
        true = true - LR * sum(true - worker for worker in range(workers))
    return _pulled(server, 0), true


# --- real ranks ------------------------------------------------------------------------------------------------

PULL, PUSH, END = 0.0, 1.0, 2.0


def on_ranks(make: Any, workers: int, bound: int, steps: int) -> tuple[list[int], torch.Tensor, torch.Tensor] | None:
    """Rank 0 has the server; every other rank is a worker. Worker 0 is slow: its gradients arrive only when all others
    wait or have finished, so that they run as far ahead as they may.

    Returns:
        On rank 0: for each pull how many steps the worker was ahead of the slowest, the last weights, the right ones.
    """
    import torch.distributed as dist

    if dist.get_rank() > 0:
        _work(dist.get_rank() - 1, steps)
        return None
    return _serve(make(_weights(), workers, bound, LR), workers, steps)


def _work(worker: int, steps: int) -> None:
    """A worker: pull, push, and again."""
    import torch
    import torch.distributed as dist

    weights, staleness = _weights(), torch.tensor(0)
    for step in range(steps):
        dist.send(torch.tensor([PULL, 0.0, 0.0, 0.0], dtype=torch.float64), 0)
        dist.recv(weights, 0)
        dist.send(torch.cat([torch.tensor([PUSH], dtype=torch.float64), _gradient(worker, step)]), 0)
        dist.recv(staleness, 0)
    dist.send(torch.tensor([END, 0.0, 0.0, 0.0], dtype=torch.float64), 0)


def _serve(server: Any, workers: int, steps: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    import torch
    import torch.distributed as dist

    done, waiting, ended, late, leads = [0] * workers, set(), set(), [], []
    message = torch.empty(4, dtype=torch.float64)

    def serve_pull(worker: int) -> None:
        weights = _pulled(server, worker)
        if weights is None:
            waiting.add(worker)
            return
        waiting.discard(worker)
        leads.append(done[worker] - min(done))
        dist.send(weights.to(torch.float64).contiguous(), worker + 1)

    def serve_push(worker: int, gradient: torch.Tensor) -> None:
        staleness = _pushed(server, worker, gradient)
        done[worker] += 1
        dist.send(torch.tensor(staleness), worker + 1)
        for one in sorted(waiting):
            serve_pull(one)

    while len(ended) < workers:
        if late and len(waiting | ended) == workers - 1:
            serve_push(0, late.pop())
            continue
        if len(waiting | ended) == workers:
            raise Wrong(f"on real ranks all workers wait for each other after {done} steps; nobody may go on.")
        worker = dist.recv(message) - 1
        kind, gradient = message[0].item(), message[1:].clone()
        if kind == PULL:
            serve_pull(worker)
        elif kind == END:
            ended.add(worker)
        elif worker == 0:
            late.append(gradient)
        else:
            serve_push(worker, gradient)
    right = _weights() - LR * sum(_gradient(worker, step) for worker in range(workers) for step in range(steps))
    last = next((weights for worker in range(workers) if (weights := _pulled(server, worker)) is not None), None)
    return leads, last, right
