"""What a parameter server decides, and what is noted down of a training: no messages, no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

MODES = ("synchronous", "asynchronous", "bounded")
GO, WAIT, STOP = 0, 1, 2  # what a server answers to a pull (it says WAIT by saying nothing yet)

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
