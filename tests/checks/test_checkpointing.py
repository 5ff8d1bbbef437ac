"""The training that is resumed, and what the text of its lab says."""

from __future__ import annotations

import copy
import random

import nbformat
import torch

from checks.labs.checkpointing import resuming
from checks.labs.checkpointing.resume_task import Task
from course import outline


def test_each_part_changes_in_a_step_and_goes_on_from_a_state_that_is_loaded():
    torch.set_num_threads(1)
    task = Task()
    parts = task.new()
    for number in range(19):  # into the second epoch
        task.step(number, parts)
    states = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
    generators, ends = (torch.get_rng_state(), random.getstate()), []
    for _ in range(2):
        for name, part in parts.items():
            part.load_state_dict(copy.deepcopy(states[name]))  # (an optimizer goes on with these tensors)
        torch.set_rng_state(generators[0])
        random.setstate(generators[1])
        before = [repr(part.state_dict()) for part in parts.values()]
        task.step(19, parts)
        ends.append([repr(part.state_dict()) for part in parts.values()])
        assert all(one != other for one, other in zip(before, ends[-1], strict=True))
        parts = task.new()
    assert ends[0] == ends[1]


def test_the_text_of_the_lab_tells_the_right_counts():
    notebook = nbformat.read(outline.notebook("checkpointing", "solutions"), as_version=4)
    text = " ".join(" ".join(cell.source for cell in notebook.cells).split())
    one, two = resuming.CASES[0], resuming.ON_RANKS_CASES[0]
    assert f"{one['steps']} steps, a checkpoint every {one['every']}" in text and f"{one['kills']} kills" in text
    assert f"{two['kills']} kills, {len(two['trouble'])} times trouble" in text
