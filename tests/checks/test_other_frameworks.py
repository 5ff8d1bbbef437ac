"""Under the checks: real launches that hang or die, and mistakes that look different."""

from __future__ import annotations

import os
import random

import nbformat
import numpy
import pytest

from utils.checks import NotStarted, Wrong, other_frameworks
from utils.checks.answers import Answer
from utils.checks.other_frameworks import averaging, judges, launching
from utils.checks.other_frameworks.training_tasks import HorovodTask, TensorFlowTask, alone
from utils.course import outline
from utils.launchers import processes
from utils.training.same_training import BATCH, Batches, weights

SOLUTION = outline.notebook("other_frameworks", "solutions")
CELLS = nbformat.read(SOLUTION, as_version=4).cells
CASES = averaging.drawn(random.Random(0))


# ---------------------------------------------------------------------- launches
def test_workers_that_wait_for_each_other_are_ended_and_named(monkeypatch):
    def average(world, parameters):
        world.recv(source=(world.Get_rank() + 1) % world.Get_size())

    monkeypatch.setattr(launching, "STILL", 2.0)
    with pytest.raises(
        Wrong, match="worker 0 and worker 1 and worker 2 wait in a collective that not all workers call"
    ):
        launching.start("mpi", Answer.of(average, "average"), other_frameworks.RANKS, CASES)
    assert processes.marked(launching.MARK, f"{os.getpid()}-") == []


def test_a_worker_that_dies_is_named():
    def average(world, parameters):
        os.abort()

    with pytest.raises(Wrong, match="average ended its process in worker 0"):
        launching.start("mpi", Answer.of(average, "average"), other_frameworks.RANKS, CASES)


def test_an_answer_that_is_not_written_yet_is_not_started():
    def average(world, parameters):
        raise NotImplementedError("your turn")

    with pytest.raises(NotStarted):
        launching.start("mpi", Answer.of(average, "average"), other_frameworks.RANKS, CASES)


# ---------------------------------------------------------------------- the training by hand
def test_the_gradients_by_hand_are_those_of_torch():
    import torch

    task = HorovodTask("/nowhere", "worker 0", 0)
    model = task.model()
    data, losses = Batches(), []
    for step in range(3):
        images, labels = map(torch.tensor, data[step])
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.data -= 0.3 * gradient
    found, final = alone([data[step] for step in range(3)], 0.3)
    assert numpy.abs(numpy.array(found) - losses).max() < 1e-5
    for parameter, array in zip(model.parameters(), final, strict=True):
        assert numpy.abs(parameter.detach().numpy().T - array).max() < 1e-5


def test_every_mistake_that_is_recognised_by_its_result_is_unlike_the_others():
    results = [judges._horovod(3, scale)[1] for scale in (3, 1, 9)]
    assert not any(_same(one, other) for number, one in enumerate(results) for other in results[:number])
    for replicas in (2, 3):
        results = [judges._tensorflow(scale)[1] for scale in (1.0, replicas, 1 / replicas)]
        results += [judges._apart(replicas, whole)[1] for whole in (True, False)]
        assert not any(_same(one, other) for number, one in enumerate(results) for other in results[:number])


def _same(one, other) -> bool:
    return judges._near(judges._flat(one), other)


# ---------------------------------------------------------------------- judges
def _found(**changed) -> list[dict]:
    """What three workers of Horovod did that are right; ``changed``: of worker 0."""
    losses, final = judges._horovod(3, 3)
    flat = [array.ravel().tolist() for array in final]
    found = []
    for worker in range(3):
        reads = [list(range(48 * (3 * step + worker), 48 * (3 * step + worker) + 48)) for step in range(8)]
        facts = {"reads": reads, "weights": flat, "reduced": 40, "broadcast": 4, "elements": 8 * 4810}
        first = (
            {"logged": [(step, [loss]) for step, loss in enumerate(losses)], "saved": [flat]}
            if worker == 0
            else {"logged": [], "saved": []}
        )
        found.append(facts | first | (changed if worker == 0 else {}))
    return found


def test_workers_that_do_what_one_process_does_are_right():
    assert judges.judge_horovod(_found()) == 0


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"reads": [[0]] * 7}, "once in each of the 8 steps"),
        ({"logged": []}, "nobody logs"),
        ({"saved": []}, "nobody saves"),
        ({"weights": None}, "task.model"),
        ({"elements": 8}, "wrap the optimizer"),
        ({"saved": [[array.ravel().tolist() for array in weights()]]}, "save after the last step"),
        ({"logged": [(0, [2.0])]}, "each of the 8 steps"),
    ],
    ids=["steps", "no loss", "no checkpoint", "another model", "not averaged", "saved too early", "one loss"],
)
def test_each_thing_that_a_worker_must_do_is_looked_at(changed, sentence):
    with pytest.raises(Wrong, match=sentence):
        judges.judge_horovod(_found(**changed))


def test_the_text_of_the_lab_tells_the_right_figures():
    text = " ".join("\n".join(cell.source for cell in CELLS).split())
    assert f"Each worker takes {HorovodTask.batch} samples a step" in text and TensorFlowTask.batch == BATCH == 144
    assert f"the same {HorovodTask.batch * HorovodTask.steps} samples" in text
    workers = len(other_frameworks.RANKS)
    assert f"batches of {workers * HorovodTask.batch} samples and the rate {workers * HorovodTask.lr:.1f}" in text
    assert f"{HorovodTask.steps} losses and all weights to ±{judges.CLOSE}" in text and judges.CLOSE == 0.0001
