"""Under the check: a team of workers in which one is killed, and who does not belong to it is refused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from checks import Wrong
from checks.ray_train import team
from lessons.launchers.processes import clean_environment

WORKER = """
import json, sys
from checks.ray_train.team import Epoch
epoch, state = Epoch(sys.argv[1]), json.loads(sys.argv[2])
for _ in range(int(sys.argv[3])):
    loss, state = epoch(state)
    print(json.dumps([loss, state]), flush=True)
"""


def _work(office: team.Team, *states: str | None, epochs: int = 1) -> list[tuple[int, list, str]]:
    """So many real processes at the same time: how each has ended, what it was told, and its last words."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": clean_environment()}
    start = [sys.executable, "-c", WORKER, office.path]
    processes = [subprocess.Popen([*start, json.dumps(state), str(epochs)], **pipe) for state in states]
    ends = [process.communicate(timeout=100) for process in processes]
    return [
        (process.returncode, [json.loads(line) for line in out.splitlines()], err.strip().rpartition("\n")[2])
        for process, (out, err) in zip(processes, ends, strict=True)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="the system must tell which process asks")
def test_a_worker_is_killed_in_its_epoch_and_others_go_on_from_what_was_kept():
    with team.Team(workers=2, epochs=4, accidents=(3,), finished=0, secret=5) as office:
        ends = sorted(_work(office, None, None, epochs=4))
        assert [code for code, *_ in ends] == [-signal.SIGKILL, 1] and "a worker of this group is gone" in ends[1][2]
        assert ends[0][1] == ends[1][1] == [[office.loss(done), office.state(done)] for done in (1, 2)]
        assert office.killed and office.finished == 2
        ends = _work(office, office.state(2), office.state(2), epochs=2)
    assert [code for code, *_ in ends] == [0, 0] and ends[0][1][-1][0] == office.loss(4)
    assert (office.begun, office.finished, office.refused) == ([0, 2], 4, [])


@pytest.mark.skipif(sys.platform != "linux", reason="the system must tell which process asks")
@pytest.mark.parametrize(
    ("begin", "epochs", "sentence"),
    [
        ((None, None), 1, "called again with the same storage, epochs are trained again"),
        ((2, 3), 1, "one worker begins after|another after"),
        ((3, 3), 3, "more than the 4 epochs"),
        ((3,), 1, "to epoch 4, 1 of 2 workers came"),
        ((3, 3, 3), 1, "more workers than the 2"),
        (("mine", "mine"), 1, "none of the states that it has returned"),
    ],
    ids=str,
)
def test_workers_that_do_not_belong_together_are_refused(begin, epochs, sentence, monkeypatch):
    monkeypatch.setattr(team, "PATIENCE", 3.0)
    with team.Team(workers=2, epochs=4, accidents=(9,), finished=3, secret=5) as office:
        states = [office.state(one) if isinstance(one, int) else one for one in begin]
        _work(office, *states, epochs=epochs)
        assert re.search(sentence, office.refused[0])
        team.register([office.path])
        office.refused.clear()
        with pytest.raises(Wrong, match="in your function's own process"):
            team.Epoch(office.path)(None)
