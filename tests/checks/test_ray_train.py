"""Under the check: workers that do not belong together are refused, and which epochs were finished is known."""

from __future__ import annotations

import os

import nbformat
import pytest

from checks.labs.ray_and_tuning.notes import Notes
from checks.labs.ray_train import trainings
from checks.labs.ray_train.team import LOSSES, STATES, Epoch
from course import outline

EPOCH = Epoch(Notes(""), workers=2, accident=2, finished=0, own=-1)
ME = os.getpid()


def _came(done: int, *pids: int, group: int = 0) -> list[dict]:
    return [{"group": group, "done": done, "pid": pid} for pid in pids]


KILLED = [*_came(0, 1, 2), *_came(1, 1, 2), {"killed": 0}]  # in epoch 2


@pytest.mark.parametrize(
    ("notes", "done", "sentence"),
    [
        ([], 0, ""),
        (_came(0, ME, 1), 1, ""),
        (KILLED, 1, ""),
        (KILLED, 0, ""),  # one finished epoch may be lost
        (_came(0, ME, 1), 0, "hands in the state after epoch 0 where epoch 1 was the last one"),
        ([*KILLED, *_came(1, 3, 4, group=1), *_came(2, 3, group=1)], 1, "more workers than the 2"),
        ([*KILLED, *_came(1, 3, group=1)], 0, "one worker begins after 1 epochs, another after 0"),
        ([], len(LOSSES), "more than the 6 epochs"),
        ([], -1, "none of the states that it has returned"),
    ],
)
def test_workers_that_do_not_belong_together_are_refused(notes, done, sentence):
    state = "mine" if done < 0 else STATES[done]
    told = EPOCH._refusal(notes, sum("killed" in note for note in notes), state)
    assert bool(told) == bool(sentence) and sentence in told


def test_what_was_finished_is_not_trained_again():
    assert EPOCH.done(KILLED) == 1
    later = Epoch(Notes(""), workers=2, accident=9, finished=3, own=-1)
    assert "called again with the same storage, epochs are trained again" in later._refusal([], 0, None)
    assert "after 1" in later._refusal([], 0, STATES[1]) and not later._refusal([], 0, STATES[2])


def test_the_text_of_the_lab_tells_how_the_check_calls():
    cells = nbformat.read(outline.notebook("ray_train", "solutions"), as_version=4).cells
    text = " ".join("\n".join(cell.source for cell in cells).split())
    starts = sum(1 + accidents for _, accidents, _ in trainings.CALLS)
    assert starts == 3 and "workers are started three times" in text
