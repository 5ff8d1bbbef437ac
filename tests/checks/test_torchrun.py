"""Under the checks: who stands still and who only takes long, real launches, and mistakes that look different."""

from __future__ import annotations

import ast
import inspect
import os

import nbformat
import pytest

from utils.checks import Wrong
from utils.checks.answers import Answer
from utils.checks.torchrun import program_verdicts, script_runs, script_verdicts, training_task
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
    for nodes, per_node in script_runs.SHAPES:
        assert training_task.BATCH % (nodes * per_node) == 0 == training_task.SAMPLES % training_task.BATCH


def test_a_worker_that_dies_under_the_real_torchrun_is_named(monkeypatch):
    def main(task):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)

    monkeypatch.setattr(script_runs, "SHAPES", ((1, 2),))
    with pytest.raises(Wrong, match=r"torchrun with 1 × 2: .*rank 1 .* was killed by SIGKILL"):
        script_runs.under_torchrun(Answer.of(main, "main"))


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
def test_every_mistake_in_stopping_is_unlike_the_others():
    cases = program_verdicts.LOSSES[3]
    found = [tuple(program_verdicts.right_epochs(case) for case in cases)]
    found += [tuple(mistake(case) for case in cases) for mistake in program_verdicts.UNTIL_MISTAKES.values()]
    assert len(set(found)) == len(found)


def test_every_mistake_with_broken_batches_is_unlike_the_others():
    found = [program_verdicts.right_updates(), *program_verdicts.EPOCH_MISTAKES.values()]
    assert all(one not in found[:number] for number, one in enumerate(found))


def test_the_text_of_the_lab_tells_the_right_counts():
    text = " ".join("\n".join(cell.source for cell in CELLS).split())
    trainings = sum(map(len, program_verdicts.LOSSES.values()))
    assert f"the right epoch in {trainings} trainings" in text
    assert f"{sum(map(len, program_verdicts.LENGTHS.values()))} sets of lengths" in text
    updates = len(program_verdicts.right_updates())
    assert f"{len(program_verdicts.STEPS)} steps on 3 ranks, {updates} updates on each" in text
    assert f"with {len(program_verdicts.SHAPES)} shapes" in text
    lines = training_task.EPOCHS * training_task.SAMPLES // training_task.BATCH
    assert f"{lines} losses to ±{script_verdicts.CLOSE}" in text and f"the {training_task.BATCH} samples" in text
