"""Pipelines over several GPUs: the stages of a model, schedules of micro-batches, and one training step.

The words: a model is cut into p **stages**, one for each GPU. A batch is cut into m **micro-batches**. Each stage has
2·m **tasks**: the forward pass F and the backward pass B of each micro-batch. A **schedule** is the order of the tasks
of each stage:

- ``gpipe``: all F, then all B. Source: Huang and others: GPipe, 2019, figure 2c.
- ``one_f_one_b``: B as early as possible, so that fewer activations wait for it. Source: Narayanan and others:
  Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 2.2: PipeDream-Flush.

One Python thread drives all GPUs: it launches the work of all stages, without waiting for it. ``launch_order`` says in
which order. (torch.distributed.pipelining has a process for each stage, and each launches its own tasks only.) The same
code runs on simulated GPUs, on ``cuda:0``, ``cuda:1``, …, and on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import record_function


class Task(NamedTuple):
    """One pass of one micro-batch through one stage: ``Task("F", 2)`` is the forward pass of micro-batch 2."""

    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}"


Schedule = Callable[[int, int], list[list[Task]]]
"""From the number of stages and of micro-batches to the tasks of each stage, in order."""


def gpipe(stages: int, micro_batches: int) -> list[list[Task]]:
    """All forward passes, then all backward passes, the last micro-batch first."""
    forward = [Task("F", i) for i in range(micro_batches)]
    backward = [Task("B", i) for i in reversed(range(micro_batches))]
    return [forward + backward for _ in range(stages)]


def one_f_one_b(stages: int, micro_batches: int) -> list[list[Task]]:
    """A few forward passes to fill the pipeline, then one forward and one backward in turn, then the rest."""
    schedule = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)  # the forward passes that fill the stages behind this one
        tasks = [Task("F", i) for i in range(ahead)]
        for i in range(micro_batches - ahead):
            tasks += [Task("F", ahead + i), Task("B", i)]
        tasks += [Task("B", i) for i in range(micro_batches - ahead, micro_batches)]
        schedule.append(tasks)
    return schedule


def launch_order(schedule: Sequence[Sequence[Task]], backward: float = 2.0) -> list[tuple[str, int, Task]]:
    """The order in which one thread launches the tasks of all stages, and the copies between them.

    The thread follows the moments at which tasks would begin if F took 1 and B took ``backward``. A copy joins the
    queues of both its GPUs when what it copies is ready. Launched earlier, it would make the receiver wait; launched
    later, it would stand behind the sender's next task.

    Returns:
        ("run" or "send", stage, task), in order. "send" is the copy of the task's result to the stage that needs it.

    Raises:
        ValueError: the schedule never ends, because a task waits for one that does not come.
    """
    last = len(schedule) - 1
    done: dict[tuple[int, Task], float] = {}  # stage and task → when it ended
    free = [0.0] * len(schedule)  # when each stage is done with what it has so far
    waiting = [list(reversed(tasks)) for tasks in schedule]  # the next task of each stage is the last of its list
    events: list[tuple[float, int, int, Task]] = []  # time, 0 for send or 1 for run, stage, task

    def ready(stage: int, task: Task) -> float | None:
        """When what the task needs is there; None: nobody knows yet."""
        if task.kind == "B" and stage == last:
            return done.get((stage, Task("F", task.micro_batch)))
        before = stage - 1 if task.kind == "F" else stage + 1
        return 0.0 if before < 0 else done.get((before, task))

    progress = True
    while progress:
        progress = False
        for stage, tasks in enumerate(waiting):
            while tasks and (since := ready(stage, tasks[-1])) is not None:
                task, start, progress = tasks.pop(), max(free[stage], since), True
                free[stage] = done[stage, task] = start + (1.0 if task.kind == "F" else backward)
                events.append((start, 1, stage, task))
                if stage != (last if task.kind == "F" else 0):
                    events.append((free[stage], 0, stage, task))
    if stuck := [f"{tasks[-1]} on stage {stage}" for stage, tasks in enumerate(waiting) if tasks]:
        raise ValueError(f"this schedule never ends; what waits: {', '.join(stuck)}")
    return [("run" if run else "send", stage, task) for _, run, stage, task in sorted(events)]


def cut(pieces: Sequence[nn.Module], sizes: Iterable[int], devices: Sequence[str | torch.device]) -> list[nn.Module]:
    """Stages of ``sizes`` pieces each, every stage on its device.

    Raises:
        ValueError: the sizes do not add up to the number of pieces, or there are more of them than devices.
    """
    sizes = list(sizes)
    if sum(sizes) != len(pieces) or len(sizes) != len(devices):
        raise ValueError(f"{len(pieces)} pieces on {len(devices)} devices cannot be cut into {sizes}")
    stages, start = [], 0
    for size, device in zip(sizes, devices, strict=True):
        stages.append(nn.Sequential(*pieces[start : start + size]).to(device))
        start += size
    return stages


def train_step(
    stages: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_function: Callable[[Tensor, Tensor], Tensor],
    micro_batches: int,
    schedule: Schedule = gpipe,
) -> Tensor:
    """Forward and backward of one batch through a pipeline; gradients add up in the parameters' ``grad``.

    Args:
        stages: modules, each with its parameters on one device.
        inputs: ``[batch, …]`` on the device of the first stage.
        targets: ``[batch, …]`` on the device of the last stage.
        loss_function: mean loss of a micro-batch, from outputs and targets.
        micro_batches: into how many equal parts the batch is cut.
        schedule: ``gpipe``, ``one_f_one_b`` or one of your own.

    Returns:
        The loss of the batch, on the device of the last stage. It has no graph: backward has run.

    Raises:
        ValueError: the batch can not be cut into equal parts.
    """
    if len(inputs) % micro_batches:
        raise ValueError(f"a batch of {len(inputs)} cannot be cut into {micro_batches} equal micro-batches")
    devices = [next(stage.parameters()).device for stage in stages]
    last = len(stages) - 1
    parts = targets.chunk(micro_batches)
    received = {(0, i): part for i, part in enumerate(inputs.chunk(micro_batches))}  # what a stage computes from
    made: dict[tuple[int, int], Tensor] = {}  # what it computed, until backward needs it
    gradients: dict[tuple[int, int], Tensor] = {}  # of what it computed
    total: Tensor | float = 0.0

    for what, stage, task in launch_order(schedule(len(stages), micro_batches)):
        i = task.micro_batch
        if what == "send" and task.kind == "F":
            received[stage + 1, i] = made[stage, i].detach().to(devices[stage + 1]).requires_grad_()
        elif what == "send":
            gradients[stage - 1, i] = received.pop((stage, i)).grad.to(devices[stage - 1])
        elif task.kind == "F":
            with record_function(str(task)):  # its name in timelines
                made[stage, i] = stages[stage](received[stage, i])
                if stage == last:
                    made[stage, i] = loss_function(made[stage, i], parts[i]) / micro_batches
                    total = made[stage, i].detach() + total
        else:
            with record_function(str(task)):
                made.pop((stage, i)).backward(gradients.pop((stage, i), None))
    return total
