"""Parameter servers and workers on real ranks, which talk by send and recv, in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lessons.algorithms.parameter_server.server import (
    STOP,
    WAIT,
    Loss,
    Record,
    Server,
    Snapshots,
    check_request,
    filled,
    gradient_at,
)

PULL, PUSH, LEAVE = 0, 1, 2  # what a worker says
WORDS, NUMBERS = 0, 1  # tags: words are received from anybody, numbers from a rank that has announced them


def train(
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
