"""Under the checks: who stands still and who only takes long, real launches, and mistakes that look different."""

from __future__ import annotations

import ast
import inspect
import os
import random

import nbformat
import pytest

from utils.checks import Wrong
from utils.checks.answers import Answer
from utils.checks.torchrun import broken_batches, script_runs, script_verdicts, stopping, training_task
from utils.course import outline

SOLUTION = outline.notebook("torchrun", "solutions")
CELLS = nbformat.read(SOLUTION, as_version=4).cells


# ---------------------------------------------------------------------- the script
def test_the_script_that_the_lab_shows_is_the_one_that_its_check_measures_by():
    def body(source: str) -> list[str]:
        function = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "single_process")
        lines = function.body[ast.get_docstring(function) is not None :]
        return [ast.dump(line) for line in lines]

    shown = [cell.source for cell in CELLS if cell.source.startswith("def single_process")]
    assert [body(source) for source in shown] == [body(inspect.getsource(training_task.single_process))]


def test_a_batch_can_be_shared_equally_in_every_shape():
    for seed in range(50):
        rng = random.Random(seed)
        given = script_runs.drawn(rng)
        shapes = [shape for some in script_runs.shapes(rng) for shape in some]
        assert all(given["batch"] % (nodes * per_node) == 0 for nodes, per_node in shapes)
        assert given["samples"] % given["batch"] == 0 and given["samples"] <= script_runs.IMAGES


def test_a_worker_that_dies_under_the_real_torchrun_is_named():
    def main(task):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)

    with pytest.raises(Wrong, match=r"torchrun with 1 × 2: .*rank 1 .* was killed by SIGKILL"):
        script_runs.under_torchrun(Answer.of(main, "main"), script_runs.drawn(random.Random(0)), [(1, 2)])


def _facts(**changed) -> dict:
    right = {"reads": [[0, 1], [2, 3]], "taken": [0], "saved": 1, "weights": {"w": [1.0]}, "groups": 1, "left": True}
    return right | {"printed": [f"epoch 0 step {step} loss 0.{step + 1}000" for step in range(2)]} | changed


def test_one_rank_that_does_what_one_process_does_is_right():
    script_verdicts.judge([_facts()], _facts() | {"summed": {}}, 1, 1)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"reads": [[0, 1], [2, 2]]}, "number 2 is not"),
        ({"reads": [[0], [1, 2, 3]]}, "in step 0"),
        ({"reads": [[0, 1, 2, 3]]}, "must stay 2"),
        ({"printed": []}, "nobody prints"),
        ({"printed": ["hello"]}, "other lines"),
        ({"weights": None}, "nothing that torch.load can read"),
        ({"weights": {"module.w": [1.0]}}, "save model.module"),
        ({"weights": {"w": [1.1]}}, "not the saved weights"),
        ({"saved": 0}, "nobody saves"),
        ({"groups": 0}, "no process group"),
    ],
    ids=str,
)
def test_each_thing_that_a_script_must_do_is_looked_at(changed, sentence):
    with pytest.raises(Wrong, match=sentence):
        script_verdicts.judge([_facts(**changed)], _facts() | {"summed": {}}, 1, 1)


# ---------------------------------------------------------------------- the five programs
def test_losses_tell_every_mistake_in_stopping_from_right_answers():
    for seed in range(20):
        cases = stopping.draw(random.Random(seed))
        right = [stopping.epochs_if(case, lambda epoch, good: stopping.mean(epoch) < good) for case in cases]
        for words, decides in stopping.MISTAKES.items():
            assert [stopping.epochs_if(case, decides) for case in cases] != right, (seed, words)


def test_in_each_training_with_broken_batches_a_step_has_no_good_one_and_another_has():
    for seed in range(20):
        for case in broken_batches.draw(random.Random(seed)):
            if int(case.get("broken batches", 0)) > 1:
                counts = [len(broken) for broken in case["broken per step"]]
                assert max(counts) == case["ranks"] and min(counts) == 0


def test_the_text_of_the_lab_tells_the_right_tolerances_of_the_script():
    text = " ".join("\n".join(cell.source for cell in CELLS).split())
    assert f"all losses to ±{script_verdicts.CLOSE} and all weights to ±{script_verdicts.CLOSE_WEIGHT:.5f}" in text
