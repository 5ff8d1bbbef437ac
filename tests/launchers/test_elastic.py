"""Elastic training with the real torchrun: workers and nodes die and come, and training goes on from its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lessons.launchers import torchrun
from lessons.launchers.failures import diagnose

pytestmark = (
    pytest.mark.nightly
)  # the lecture on torchrun runs the same: a worker is killed, a node comes late and is lost

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "scripts" / "train_resumable.py"
LONG = 240.0  # seconds; a machine that does much else at the same time is slow


def starts(run: torchrun.Run) -> list[str]:
    """Who started where, each time: "2 ranks start at step 10"."""
    return [line for worker in run.all_workers for line in re.findall(r"\d+ ranks start at step \d+", worker.output)]


def result(run: torchrun.Run) -> str:
    """ "step 20: loss …, parameters …" """
    (line,) = (line for worker in run.workers for line in worker.output.splitlines() if line.startswith("step 20"))
    return line


@pytest.fixture
def uninterrupted(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("uninterrupted"))
    return diagnose.run(TRAINING, "--folder", folder, ranks=2, timeout=LONG)[0].output.splitlines()[-1]


def test_after_a_worker_was_killed_the_result_is_that_of_a_training_without_failure(uninterrupted, tmp_path):
    run = torchrun.run_agents(
        *(TRAINING, "--folder", str(tmp_path), "--die-at", "13", "--die-rank", "1"),
        **{"nodes": 2, "per_node": 1, "min_nodes": 1, "rendezvous": "c10d", "max_restarts": 1, "timeout": LONG},
        rdzv_conf={"last_call_timeout": 60},  # the second node may take its time; with both, nobody waits
    )
    assert starts(run) == ["2 ranks start at step 0", "2 ranks start at step 10"]
    assert result(run) == uninterrupted
    assert [agent.exit_code for agent in run.agents] == [0, 0]
