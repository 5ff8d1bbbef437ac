"""A parameter server: workers pull parameters, compute a gradient, and push it.

The first ranks are the **servers** (each holds an equal part of the parameters), the next ones the **workers**. Three
modes say when a worker that pulls has to wait, and what becomes of a gradient:

- ``"synchronous"``: the server waits for one gradient of every worker, takes one step with their mean, and only then
  lets anybody pull again.
- ``"asynchronous"``: nobody waits. Every gradient is a step of its own, at once. Source: Dean and others: Large Scale
  Distributed Deep Networks, 2012 (Downpour SGD).
- ``"bounded"``: asynchronous, but nobody may be more than ``bound`` gradients ahead of the slowest worker. Source: Ho
  and others: More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013.

**Staleness** of a gradient: how many steps the server has taken between the pull that it was computed from and its
push. ``train`` runs on ranks, in real time; ``simulate`` runs the same ``Server`` in one process, in simulated time,
and so gives the same numbers on every machine.

Messages go over send and recv, and the server receives from whoever comes first. NCCL cannot do that: use gloo.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from utils.hardware.links import Link, point_to_point

MODES = ("synchronous", "asynchronous", "bounded")
GO, WAIT, STOP = 0, 1, 2  # what a server answers to a pull (it says WAIT by saying nothing yet)
PULL, PUSH, LEAVE = 0, 1, 2  # what a worker says
WORDS, NUMBERS = 0, 1  # tags: words are received from anybody, numbers from a rank that has announced them

Loss = Callable[[nn.Module, int, int], Tensor]
"""From the model, the worker's number (from 0) and its step (from 0) to the loss of that worker's next batch."""


class Point(NamedTuple):
    """The loss at one moment of a training."""

    seconds: float
    updates: int
    loss: float


@dataclass
class Record:
    """What one rank (or a simulation) saw.

    Args:
        role: "server" or "worker".
        bytes_in, bytes_out: parameters and gradients that it received and sent. (The words around them, 8 bytes each,
            are not counted.)
        seconds: how long it took part.
        gradients: how many each worker pushed; for a worker, only its own.
        updates: steps that the server took.
        staleness: of each gradient, in the order of arrival.
        ahead: at each pull, how many gradients the worker was ahead of the slowest.
        history: the loss over time, if ``evaluate`` was given.
        parameters: the server's part at the end, ``[n]``.
    """

    role: str
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    gradients: list[int] = field(default_factory=list)
    updates: int = 0
    staleness: list[int] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    history: list[Point] = field(default_factory=list)
    parameters: Tensor | None = None


class Server:
    """What a server decides: may a worker pull, and what becomes of a gradient. No messages, no time.

    Args:
        parameters: ``[n]``, changed in place.
        workers: how many there are.
        lr: learning rate of plain SGD.
        mode: one of ``MODES``.
        bound: for "bounded": the most gradients that a worker may be ahead of the slowest when it pulls.
        gradients: after so many, everybody is told to stop. None: never.
    """

    def __init__(
        self, parameters: Tensor, workers: int, lr: float, mode: str, bound: int = 0, gradients: int | None = None
    ) -> None:
        self.parameters, self.lr, self.mode, self.bound, self.limit = parameters, lr, mode, bound, gradients
        self.updates = self.handed_out = 0
        self.gradients = [0] * workers  # pushed by each worker
        self.pulled = [0] * workers  # how many updates the parameters had that each worker works with
        self.round: dict[int, Tensor] = {}  # the gradients of this round, in synchronous mode
        self.staleness: list[int] = []
        self.ahead: list[int] = []

    def pull(self, worker: int) -> int:
        """May this worker have the parameters? GO, WAIT or STOP."""
        ahead = self.gradients[worker] - min(self.gradients)
        if self.limit is not None and self.handed_out >= self.limit:
            return STOP
        if worker in self.round or (self.mode == "bounded" and ahead > self.bound):
            return WAIT
        self.handed_out += 1
        self.pulled[worker] = self.updates
        self.ahead.append(ahead)
        return GO

    def push(self, worker: int, gradient: Tensor) -> None:
        """Take a gradient, and take a step if it is time for one."""
        self.gradients[worker] += 1
        self.staleness.append(self.updates - self.pulled[worker])
        if self.mode == "synchronous":
            self.round[worker] = gradient
            if len(self.round) < len(self.gradients):
                return
            gradient = torch.stack([self.round[number] for number in range(len(self.gradients))]).mean(0)
            self.round.clear()
        self.parameters.sub_(gradient, alpha=self.lr)
        self.updates += 1


def check_request(mode: str, workers: int, gradients: int) -> None:
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if mode == "synchronous" and gradients % workers:
        raise ValueError(f"{gradients} gradients cannot come from {workers} workers in full rounds")


class Snapshots:
    """Copies of the parameters over time; their loss is computed when all is over, so that nobody waits for it."""

    def __init__(self, server: Server, every: int) -> None:
        self.server, self.every, self.taken = server, every, [(0.0, 0, server.parameters.clone())]

    def take(self, seconds: float) -> None:
        if self.server.updates - self.taken[-1][1] >= self.every:
            self.taken.append((seconds, self.server.updates, self.server.parameters.clone()))

    def history(self, model: nn.Module, evaluate: Callable[[nn.Module], float] | None) -> list[Point]:
        points = []
        for seconds, updates, parameters in self.taken if evaluate else []:
            vector_to_parameters(parameters, model.parameters())
            with torch.no_grad():
                points.append(Point(seconds, updates, float(evaluate(model))))
        return points


def filled(record: Record, server: Server) -> Record:
    record.gradients, record.updates, record.parameters = server.gradients, server.updates, server.parameters.clone()
    record.staleness, record.ahead = server.staleness, server.ahead
    return record


def gradient_at(model: nn.Module, loss: Loss, vector: Tensor, worker: int, step: int) -> Tensor:
    """The gradient of one worker's batch at these parameters, as one vector."""
    vector_to_parameters(vector, model.parameters())
    found = torch.autograd.grad(loss(model, worker, step), list(model.parameters()))
    return parameters_to_vector(found)


# ---------------------------------------------------------------------- on real ranks
def train(  # noqa: PLR0913
    model: nn.Module,
    loss: Loss,
    gradients: int,
    lr: float,
    mode: str = "synchronous",
    bound: int = 0,
    servers: int = 1,
    workers: int | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    every: int = 1,
) -> Record | None:
    """Train a model with parameter servers on real ranks. Every rank calls it with the same arguments.

    Args:
        model: on the CPU. The servers' parameters are the ones to start from. At the end a server's model holds what it
            knows: with one server, the trained model.
        loss: see ``Loss``. Only workers call it. (Let it sleep on one worker, and that worker is slow.)
        gradients: how many are computed by all workers together.
        lr: learning rate of plain SGD. Synchronous: of the mean of a round; else of every single gradient.
        mode, bound: see ``Server``.
        servers: how many; server i holds the i-th part of the parameters. Ranks 0 to servers − 1.
        workers: how many; None: all other ranks. Ranks that are left over get None.
        evaluate: the loss to note in ``Record.history`` (with one server only).
        every: note it after so many updates.

    Returns:
        What this rank saw.

    Raises:
        ValueError: on every rank, if the ranks are too few, or the gradients do not make full rounds.
    """
    rank = dist.get_rank()
    workers = dist.get_world_size() - servers if workers is None else workers
    if servers < 1 or workers < 1 or servers + workers > dist.get_world_size():
        world = dist.get_world_size()
        raise ValueError(f"{servers} servers and {workers} workers do not fit into a world of {world} ranks")
    check_request(mode, workers, gradients)
    vector = parameters_to_vector(model.parameters()).detach().clone()
    parts = vector.tensor_split(servers)
    record, snapshots = None, None
    if rank < servers:
        limit = gradients if rank == 0 else None  # the first server says when it is over
        server = Server(parts[rank], workers, lr, mode, bound, limit)
        snapshots = Snapshots(server, every)
        record = _serve(server, snapshots, servers)
    elif rank < servers + workers:
        record = _work(model, loss, vector, parts, rank - servers)
    dist.barrier()  # else a quick rank's first word of the next run could reach a server that is still in this one
    if record is None or snapshots is None:
        return record
    record.history = snapshots.history(model, evaluate if servers == 1 else None)
    vector_to_parameters(vector, model.parameters())
    return record


def _serve(server: Server, snapshots: Snapshots, servers: int) -> Record:
    """Answer workers until all have left."""
    record, parameters = Record("server"), server.parameters
    waiting: list[int] = []
    present, began = len(server.gradients), time.perf_counter()
    while present:
        word = torch.empty(1, dtype=torch.int64)
        worker = dist.recv(word, tag=WORDS) - servers  # from whoever comes first
        if word.item() == PUSH:
            gradient = torch.empty_like(parameters)
            dist.recv(gradient, worker + servers, tag=NUMBERS)
            record.bytes_in += gradient.nbytes
            server.push(worker, gradient)
            snapshots.take(time.perf_counter() - began)
        elif word.item() == PULL:
            waiting.append(worker)
        else:
            present -= 1
        for worker in list(waiting):
            answer = server.pull(worker)
            if answer == WAIT:
                continue
            waiting.remove(worker)
            dist.send(torch.tensor([answer]), worker + servers, tag=NUMBERS)
            if answer == STOP:
                present -= 1
            else:
                dist.send(parameters, worker + servers, tag=NUMBERS)
                record.bytes_out += parameters.nbytes
    record.seconds = time.perf_counter() - began
    return filled(record, server)


def _work(model: nn.Module, loss: Loss, vector: Tensor, parts: Sequence[Tensor], worker: int) -> Record:
    """Pull, compute, push, until the first server says that it is over."""
    record = Record("worker")
    began, step = time.perf_counter(), 0
    while _pull(parts, record):
        gradient = gradient_at(model, loss, vector, worker, step)
        for server, part in enumerate(gradient.tensor_split(len(parts))):
            dist.send(torch.tensor([PUSH]), server, tag=WORDS)
            dist.send(part, server, tag=NUMBERS)
            record.bytes_out += part.nbytes
        step += 1
    record.seconds, record.gradients = time.perf_counter() - began, [step]
    return record


def _pull(parts: Sequence[Tensor], record: Record) -> bool:
    """Get every server's part. False: it is over, and all servers know that this worker leaves."""
    for server, part in enumerate(parts):
        dist.send(torch.tensor([PULL]), server, tag=WORDS)
        answer = torch.empty(1, dtype=torch.int64)
        dist.recv(answer, server, tag=NUMBERS)
        if answer.item() == STOP:
            for other in range(1, len(parts)):
                dist.send(torch.tensor([LEAVE]), other, tag=WORDS)
            return False
        dist.recv(part, server, tag=NUMBERS)
        record.bytes_in += part.nbytes
    return True


# ---------------------------------------------------------------------- in simulated time
def simulate(  # noqa: PLR0913
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
