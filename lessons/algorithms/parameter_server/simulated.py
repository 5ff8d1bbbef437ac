"""A parameter server in one process and in simulated time: real gradients, and clocks that one chooses."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lessons.algorithms.parameter_server.server import (
    GO,
    WAIT,
    Loss,
    Record,
    Server,
    Snapshots,
    check_request,
    filled,
    gradient_at,
)
from utils.hardware.links import Link, point_to_point


def simulate(
    model: nn.Module,
    loss: Loss,
    gradients: int,
    lr: float,
    seconds: Sequence[float],
    mode: str = "synchronous",
    bound: int = 0,
    link: Link | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    every: int = 1,
) -> Record:
    """The same server in one process and in simulated time: real gradients, and clocks that we choose.

    Args:
        model: its parameters are the start; they are left as they are.
        loss, gradients, lr, mode, bound, evaluate, every: as for ``train``.
        seconds: what each worker needs for a gradient: one number for each worker.
        link: the server's link. It carries one message at a time in each direction, so workers queue. None: messages
            take no time.

    Returns:
        What the server saw; ``seconds`` and ``history`` are in simulated seconds.
    """
    check_request(mode, len(seconds), gradients)
    start = parameters_to_vector(model.parameters()).detach().clone()
    server = Server(start.clone(), len(seconds), lr, mode, bound, gradients)
    snapshots, record = Snapshots(server, every), Record("server")
    message = point_to_point(start.nbytes, link) if link else 0.0
    out_free = in_free = 0.0  # when the two directions of the server's link are free again
    steps = [0] * len(seconds)
    events: list[tuple[float, int, int, Tensor | None]] = []  # time, order, worker, gradient (None: not yet sent)
    computed: dict[int, Tensor] = {}
    waiting, now, order = list(range(len(seconds))), 0.0, 0
    while waiting or events:
        for worker in list(waiting):
            answer = server.pull(worker)
            if answer == WAIT:
                continue
            waiting.remove(worker)
            if answer == GO:
                out_free = max(now, out_free) + message
                record.bytes_out += start.nbytes
                computed[worker] = gradient_at(model, loss, server.parameters, worker, steps[worker])
                steps[worker] += 1
                order += 1
                heapq.heappush(events, (out_free + seconds[worker], order, worker, None))
        if not events:
            break
        now, _, worker, gradient = heapq.heappop(events)
        if gradient is None and link:  # it is computed, and joins the queue at the server's link
            in_free = max(now, in_free) + message
            order += 1
            heapq.heappush(events, (in_free, order, worker, computed[worker]))
            continue
        record.bytes_in += start.nbytes
        server.push(worker, computed[worker])
        snapshots.take(now)
        waiting.append(worker)
    record.seconds = now
    record.history = snapshots.history(model, evaluate)
    vector_to_parameters(start, model.parameters())
    return filled(record, server)
