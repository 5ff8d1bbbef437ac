"""A real Slurm of virtual nodes: both batch scripts run on it, its answers are true, and nothing of it stays."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lessons.launchers import slurm

pytestmark = pytest.mark.extras  # (A training under Slurm: the lecture on torchrun runs one; others are `nightly`.)

ROOT = Path(__file__).resolve().parents[2]
LONG = 900.0  # seconds; a machine that does much else at the same time is slow

needs_slurm = pytest.mark.skipif(slurm.why_not() is not None, reason=str(slurm.why_not()))


@pytest.fixture(scope="module")
def cluster():
    with slurm.cluster() as running:
        yield running


@pytest.fixture
def batch(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "batch.sh"
        path.write_text(f"#!/bin/bash\n{text}\n")
        return path

    return write


@needs_slurm
def test_srun_runs_a_task_on_each_node(cluster):
    printed = cluster.command("srun", "--nodes=2", "sh", "-c", "echo $SLURMD_NODENAME has task $SLURM_PROCID")
    assert sorted(printed.split("\n")) == ["", "node1 has task 0", "node2 has task 1"]


@pytest.mark.nightly
@needs_slurm
def test_without_torchrun_slurm_numbers_the_ranks(cluster):
    job = cluster.wait(cluster.submit("scripts/who_am_i.sbatch"), LONG)
    assert (job.state, job.exit_code, job.nodes) == ("COMPLETED", 0, ("node1", "node2")), job
    said = [
        f"node {rank // 2}, local rank {rank % 2}: I am rank {rank} of 4; the sum of all ranks is 6"
        for rank in range(4)
    ]
    assert sorted(filter(None, job.output.splitlines())) == said


@pytest.mark.nightly
@needs_slurm
def test_torchrun_under_slurm_trains_and_goes_on_after_a_worker_was_killed(cluster, tmp_path):
    words = ("scripts/train.sbatch", "--folder", str(tmp_path), "--die-at", "13", "--die-rank", "1")
    variables = {"SLURM_GPUS_ON_NODE": "1", "PROGRAM": "scripts/train_resumable.py"}  # so: one worker on each node
    job = cluster.wait(cluster.submit(*words, **variables), LONG)
    assert (job.state, job.exit_code, job.nodes) == ("COMPLETED", 0, ("node1", "node2")), job
    said = re.findall(r"\d+ ranks start at step \d+", job.output)
    assert said == ["2 ranks start at step 0", "2 ranks start at step 10"]
    assert len(re.findall(r"^step 20: loss \d\.\d+, parameters [0-9a-f]{16}$", job.output, re.MULTILINE)) == 1


@pytest.mark.nightly
@needs_slurm
def test_a_job_whose_time_is_nearly_over_saves_goes_back_into_the_queue_and_goes_on(cluster, tmp_path):
    words = ("scripts/train.sbatch", "--folder", str(tmp_path), "--steps", "1000", "--every", "1000")
    number = cluster.submit(*words)
    output, end = "", time.monotonic() + LONG
    while "start at step 0" not in output and time.monotonic() < end:
        time.sleep(0.2)
        output = "".join(path.read_text() for path in cluster.folder.rglob(f"*-{number}.out"))
    cluster.command("scancel", "--batch", "--signal=USR1", str(number))  # as Slurm does by --signal
    job = cluster.wait(number, LONG)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job
    stopped = re.findall(r"stopped after step (\d+)", job.output)
    assert len(stopped) == 1 and 0 < int(stopped[0]) < 1000
    assert re.findall(r"4 ranks start at step (\d+)", job.output) == ["0", *stopped]
    assert len(re.findall(r"^step 1000: loss \d\.\d+$", job.output, re.MULTILINE)) == 1


@needs_slurm
def test_a_job_that_fails_comes_back_with_its_exit_code_and_all_that_it_printed(cluster, batch):
    script = batch('echo "$1 $COLOUR"; echo to stderr >&2; exit 3')
    job = cluster.wait(cluster.submit("--nodes=1", script, "two words", COLOUR="blue"))
    assert (job.state, job.exit_code, len(job.nodes)) == ("FAILED", 3, 1)
    assert job.output == "two words blue\nto stderr\n"


@needs_slurm
def test_a_job_that_takes_too_long_is_cancelled_and_the_error_says_what_it_printed(cluster, batch):
    number = cluster.submit(batch("echo still here; sleep 1000"))
    deadline, output = time.monotonic() + LONG, cluster.folder / f"job-{number}.out"
    while not (output.exists() and output.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(
        slurm.SlurmError, match=rf"job {number} had not ended after 0\.1 s \(\w+, .*cancelled\.\nstill here"
    ):
        cluster.wait(number, 0.1)
    job = cluster.wait(number, LONG)
    assert (job.state, job.exit_code) == ("CANCELLED", None)


def in_folder(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder, or were told of it."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        words, place = " ".join(process.info["cmdline"] or ()), process.info["cwd"] or ""
        if process.info["status"] != psutil.STATUS_ZOMBIE and (str(folder) in words or place.startswith(str(folder))):
            found.append(words)
    return found


@needs_slurm
def test_clusters_run_side_by_side_and_nothing_of_them_stays(cluster, batch):
    with slurm.cluster() as other:
        assert other.command("sinfo", "--noheader", "--Node", "--format=%N %T").split() == [
            "node1",
            "idle",
            "node2",
            "idle",
        ]
        other.submit(batch(f"cd {other.folder}; touch runs; exec sleep 1000"))
        deadline = time.monotonic() + LONG
        while not (other.folder / "runs").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert any(words.startswith("sleep 1000") for words in in_folder(other.folder))
    assert in_folder(other.folder) == []
    assert not other.folder.exists()
    assert cluster.command("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle", "idle"]


@needs_slurm
def test_nothing_stays_when_the_notebook_itself_is_killed():
    program = "import time\nfrom lessons.launchers import slurm\n"
    program += "with slurm.cluster() as c: print(c.folder, flush=True); time.sleep(1000)"
    notebook = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert notebook.stdout is not None
    folder = Path(notebook.stdout.readline().strip())
    assert len(in_folder(folder)) >= 4  # munged, slurmctld, two slurmd
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.communicate()
    deadline = time.monotonic() + LONG
    while (left := in_folder(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_why_not_is_one_sentence_for_each_reason(monkeypatch):
    if sys.platform == "linux":
        monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "slurmctld" else f"/bin/{name}")
        assert slurm.why_not() == "Slurm is not installed here (no slurmctld): apt-get install slurm-wlm munge"
        with pytest.raises(slurm.SlurmError, match="no slurmctld"), slurm.cluster():
            pass
    monkeypatch.setattr(sys, "platform", "darwin")
    assert slurm.why_not() == "Slurm runs on Linux only"
