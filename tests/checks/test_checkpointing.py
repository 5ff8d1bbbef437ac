"""The training that is resumed, and what the text of its lab says."""

from __future__ import annotations

import itertools
import random

import nbformat
import pytest
import torch

from checks.labs.checkpointing import alone, newest
from checks.labs.checkpointing.resume_task import Decay, Momentum, Task
from checks.labs.checkpointing.trainings import facts
from course import outline

TEXT = " ".join(
    "\n".join(
        cell.source for cell in nbformat.read(outline.notebook("checkpointing", "solutions"), as_version=4).cells
    ).split()
)


def test_every_part_and_generator_is_another_after_each_step():
    torch.set_num_threads(1)
    task = Task()
    parts = task.new()
    seen = [facts(parts)]
    for number in range(task.steps):
        task.step(number, parts)
        seen.append(facts(parts))
    for name in seen[0]:
        values = [one[name] for one in seen]
        if name == "python":
            assert len(set(values)) == len(values)
        else:
            assert all(one != other for one, other in itertools.pairwise(values)), name
    assert parts["batches"].epoch >= 2  # so kills fall into several epochs


def test_a_state_that_is_loaded_goes_on_as_the_old_one():
    task = Task()
    parts = task.new()
    for number in range(7):
        task.step(number, parts)
    states = {name: part.state_dict() for name, part in parts.items()}
    states["model"] = {name: value.clone() for name, value in states["model"].items()}
    states["optimizer"] = dict(states["optimizer"], velocities=[v.clone() for v in states["optimizer"]["velocities"]])
    generators = torch.get_rng_state(), random.getstate()
    task.step(7, parts)
    right = facts(parts)
    parts = task.new()
    for name, part in parts.items():
        part.load_state_dict(states[name])
    torch.set_rng_state(generators[0])
    random.setstate(generators[1])
    task.step(7, parts)
    assert facts(parts) == right


def test_the_quick_optimizer_and_schedule_are_those_of_torch():
    weights = [torch.linspace(0, 1, 5).requires_grad_() for _ in range(2)]
    mine, real = Momentum(weights[:1]), torch.optim.SGD(weights[1:], lr=0.1, momentum=0.9)
    schedule = Decay(mine)
    for _ in range(12):
        for weight in weights:
            weight.grad = (weight.detach() - 2) ** 2
        real.param_groups[0]["lr"] = mine.lr
        mine.step(), real.step(), schedule.step()
    torch.testing.assert_close(*weights)
    assert mine.lr == pytest.approx(0.1 * 0.97**5)


def test_the_text_of_the_lab_tells_the_right_counts():
    one, two = alone.CASES[0], newest.CASES[0]
    assert f"{one['steps']} steps, a checkpoint every {one['every']}" in TEXT and f"{one['kills']} kills" in TEXT
    assert f"{two['kills']} kills, {len(two['trouble'])} times trouble" in TEXT
