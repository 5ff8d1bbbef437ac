"""Under the checks: the script as it is given is what they measure by, and real launches that fail or stand still."""

from __future__ import annotations

import os

import pytest

from checks import Wrong
from checks.engine import Reference, judge
from checks.engine.answers import Answer
from checks.labs.torchrun import scripts


def test_on_one_rank_the_script_as_it_is_given_is_right():
    (single_process,) = Reference("torchrun", "single_process").functions()

    def main(task):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        single_process(task)
        dist.destroy_process_group()

    assert judge(scripts.OFFICIAL, scripts.play, scripts.CASES, Answer.of(main, "main"), ranks=(1,)) == {"cases": 2}


def test_a_worker_that_dies_under_the_real_torchrun_is_named():
    def main(task):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)

    with pytest.raises(Wrong, match=r"with torchrun on 2 ranks: .*rank 1 .* was killed by SIGKILL"):
        scripts.start(Answer.of(main, "main"))


def test_ranks_that_wait_for_ever_under_the_real_torchrun_are_ended(monkeypatch):
    def main(task):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    monkeypatch.setattr(scripts, "STILL", 4)
    with pytest.raises(Wrong, match=r"with torchrun on 2 ranks: .*was not finished"):
        scripts.start(Answer.of(main, "main"))
