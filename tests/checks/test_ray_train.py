"""Under the check: workers that do not belong together are refused, and which epochs were finished is known."""

from __future__ import annotations

import os

import pytest

from checks.labs.ray_train.team import LOSSES, STATES, Epoch

EPOCH = Epoch("", workers=2, accident=2, finished=0, own=-1)
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
        ([*KILLED, *_came(1, 3, group=1)], 0, "one worker begins after 1 epochs, another after 0"),
        ([], len(LOSSES), "no state from which an epoch that is asked for begins"),
        ([], -1, "no state from which"),
    ],
)
def test_workers_that_do_not_belong_together_are_refused(notes, done, sentence):
    state = "mine" if done < 0 else STATES[done]
    told = EPOCH.refusal(notes, sum("killed" in note for note in notes), state)
    assert bool(told) == bool(sentence) and sentence in told


def test_what_was_finished_is_not_trained_again():
    assert EPOCH.done(KILLED) == 1
    later = Epoch("", workers=2, accident=9, finished=3, own=-1)
    assert "called again with the same storage, epochs are trained again" in later.refusal([], 0, None)
    assert "after 1" in later.refusal([], 0, STATES[1]) and not later.refusal([], 0, STATES[2])
