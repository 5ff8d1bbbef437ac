"""Under the checks: real launches that hang or die, and mistakes that look different."""

from __future__ import annotations

import nbformat
import numpy
import pytest

from checks.engine.verdicts import Wrong
from checks.labs.other_frameworks import judges
from checks.labs.other_frameworks.training_tasks import HOROVOD, TENSORFLOW, HorovodTask, alone, start_of
from course import outline
from utils.training.same_training import BATCH, Batches, weights

SOLUTION = outline.notebook("other_frameworks", "solutions")
CELLS = nbformat.read(SOLUTION, as_version=4).cells


# ---------------------------------------------------------------------- the training by hand
def test_the_gradients_by_hand_are_those_of_torch():
    import torch

    model = HorovodTask("/nowhere", "worker 0", HOROVOD, 0).model()
    data, losses = Batches(), []
    for step in range(3):
        images, labels = map(torch.tensor, data[step])
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.data -= 0.3 * gradient
    found, final = alone([data[step] for step in range(3)], 0.3, start=start_of(HOROVOD, 0))
    assert numpy.abs(numpy.array(found) - losses).max() < 1e-5
    for parameter, array in zip(model.parameters(), final, strict=True):
        assert numpy.abs(parameter.detach().numpy().T - array).max() < 1e-5


def test_every_mistake_that_is_recognised_by_its_result_is_unlike_the_others():
    workers = HOROVOD["ranks"]
    results = [judges.horovod(HOROVOD, scale)[1] for scale in (workers, 1, workers**2)]
    assert not any(_same(one, other) for number, one in enumerate(results) for other in results[:number])
    for case in TENSORFLOW:
        assert BATCH % case["ranks"] == 0
        results = [judges.tensorflow(case, scale)[1] for scale in (1.0, case["ranks"], 1 / case["ranks"])]
        results += [judges.apart(case, whole)[1] for whole in (True, False)]
        assert not any(_same(one, other) for number, one in enumerate(results) for other in results[:number])


def test_there_are_as_many_images_as_the_largest_training_reads():
    assert HOROVOD["steps"] * HOROVOD["batch"] * HOROVOD["ranks"] <= len(Batches().labels)


def _same(one, other) -> bool:
    return judges._near(judges._flat(one), other)


# ---------------------------------------------------------------------- judges
def _judged(**changed) -> str:
    """What is said to workers of Horovod that are right but for what worker 0 has ``changed``."""
    losses, final = judges.horovod(HOROVOD, 3)
    flat, batch, found = [array.ravel().tolist() for array in final], HOROVOD["batch"], []
    for worker in range(3):
        firsts = [batch * (3 * step + worker) for step in range(HOROVOD["steps"])]
        facts = {"reads": [list(range(first, first + batch)) for first in firsts], "weights": flat, "logged": []}
        facts |= {"saved": [], "elements": HOROVOD["steps"] * 4810, "begun": START}
        if worker == 0:
            facts |= {"logged": [(step, [loss]) for step, loss in enumerate(losses)], "saved": [flat]} | changed
        found.append(facts)
    try:
        judges.judge_horovod(HOROVOD, found)
    except Wrong as wrong:
        return wrong.text
    return ""


def test_workers_that_do_what_one_process_does_are_right():
    assert _judged() == "" == _judged(elements=0)  # whichever collectives they use


START = [array.ravel().tolist() for array in weights()]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"reads": [[0]] * 5}, "samples in each of the"),
        ({"logged": []}, "nobody logs"),
        ({"saved": []}, "nobody saves"),
        ({"weights": None}, "task.model"),
        ({"elements": 8, "weights": START}, "wrap the optimizer"),
        ({"begun": [[one + 1 for one in array] for array in START], "weights": START}, "start with different weights"),
        ({"elements": 4810, "weights": START}, "average every gradient in every step"),
        ({"weights": START}, "different weights at the end"),
        ({"saved": [START]}, "save after the last step"),
        ({"logged": [(0, [2.0])]}, "the loss of each of the"),
    ],
    ids=str,
)
def test_each_thing_that_a_worker_must_do_is_looked_at(changed, sentence):
    assert sentence in _judged(**changed)


def test_the_text_of_the_lab_tells_the_right_figures():
    text = " ".join("\n".join(cell.source for cell in CELLS).split())
    assert f"`task.batch` = {BATCH} samples" in text
    assert text.count(f"all weights to ±{judges.CLOSE}") == 2 and judges.CLOSE == 0.0001
