"""Under the checks: who stands still and who only takes long, real launches, and mistakes that look different."""

from __future__ import annotations

import ast
import inspect
import os
import random

import nbformat
import pytest

from checks import Wrong
from checks.answers import Answer
from checks.torchrun import broken_batches, script_runs, script_verdicts, slurm_lines, stopping, training_task
from course import outline

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
        for case in script_runs.draw(random.Random(seed)):
            assert case["batch"] % case["ranks"] == 0 and case["ranks"] == case["nodes"] * case["per node"]
            assert case["samples"] % case["batch"] == 0 and case["samples"] <= script_runs.IMAGES


def test_a_worker_that_dies_under_the_real_torchrun_is_named():
    def main(task):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)

    with pytest.raises(Wrong, match=r"torchrun with 1 × 2: .*rank 1 .* was killed by SIGKILL"):
        script_runs.started(Answer.of(main, "main"), script_runs.draw(random.Random(0))[-1])


def test_ranks_that_wait_for_ever_under_the_real_torchrun_are_ended(monkeypatch):
    def main(task):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    monkeypatch.setattr(script_runs, "STILL", 4)
    with pytest.raises(Wrong, match=r"torchrun with 1 × 2: .*was not finished"):
        script_runs.started(Answer.of(main, "main"), script_runs.draw(random.Random(0))[-1])


def _facts(**changed) -> dict:
    right = {
        "reads": [[0, 1], [2, 3]],
        "taken": [0],
        "saved": 1,
        "weights": {"w": ([1], [1.0])},
        "groups": 1,
        "left": True,
    }
    right["events"] = []
    return right | {"printed": [f"epoch 0 step {step} loss 0.{step + 1}000" for step in range(2)]} | changed


def test_one_rank_that_does_what_one_process_does_is_right():
    assert _judged(_facts()) == []


def _judged(facts: dict) -> list[str]:
    case = {"ranks": 1, "per node": 1, "reference": [_facts() | {"summed": {}}]}
    return [broken.sentence for broken in script_verdicts.judge(case, [facts])]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"reads": [[0, 1], [2, 2]]}, "number 2 is not"),
        ({"reads": [[0], [1, 2, 3]]}, "in step 0"),
        ({"reads": [[0, 1, 2, 3]]}, "must stay 2"),
        ({"printed": []}, "nobody prints"),
        ({"printed": ["hello"]}, "other lines"),
        ({"weights": None}, "nothing that torch.load can read"),
        ({"weights": {"module.w": ([1], [1.0])}}, "save model.module"),
        ({"weights": {"w": ([1, 1], [1.0])}}, "other names or shapes"),
        ({"weights": {"w": ([1], [1.1])}}, "not the saved weights"),
        ({"taken": [1]}, "must take the GPU"),
        ({"saved": 0}, "nobody saves"),
        ({"groups": 0}, "no process group"),
    ],
    ids=str,
)
def test_each_thing_that_a_script_must_do_is_looked_at(changed, sentence):
    assert sentence in _judged(_facts(**changed))[0]


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


def test_no_job_of_a_case_is_drawn_twice():
    """Two lines of one job would be told to meet each other."""
    for seed in range(300):
        for case in slurm_lines.draw(random.Random(seed)):
            for jobs in (slurm_lines._jobs(case), case["more jobs"]):
                assert len(set(jobs)) == len(jobs)
