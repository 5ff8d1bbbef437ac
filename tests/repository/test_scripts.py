"""Every script under scripts/ runs under the launcher that it is written for: here, in a lecture, or in other tests.

Batch scripts of Slurm run in test_slurm.py, and those in scripts/failures fail as they should in test_failures.py.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lessons.launchers import processes, torchrun

ROOT = Path(__file__).resolve().parents[2]
LONG = 240.0  # seconds; a machine that does much else at the same time is slow


def start(*command: str) -> str:
    """Run a launcher's command in the repository's folder, as a learner does, and return all that was printed."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=processes.clean_environment() | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LONG)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # torchrun ends its workers
            process.communicate()
    assert process.returncode == 0, output
    return output


def with_torchrun(script: str, *args: str) -> str:
    torchrun_program = str(Path(sys.executable).with_name("torchrun"))
    return start(torchrun_program, "--standalone", "--nproc-per-node=2", f"scripts/{script}", *args)


def elastic_steps(folder: Path) -> None:
    (folder / "step.txt").write_text("3")  # where an earlier start has stopped
    (folder / "stop").touch()  # all ranks see it in their first step
    said = with_torchrun("elastic_steps.py", "--folder", str(folder), "--seconds", "0")
    assert sorted(said.strip().splitlines()) == [f"rank {rank} of 2 goes on after step 3" for rank in range(2)]
    assert (folder / "step.txt").read_text() == "4"


def all_reduce_clock(folder: Path) -> None:
    with torchrun.agents(ROOT / "scripts" / "all_reduce_clock.py", nodes=1) as run:  # it never ends by itself
        run.start(0)
        assert 0 < float(run.wait_for(".", LONG)) < LONG


def first_ddp(folder: Path) -> None:
    losses = [
        float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+)$", with_torchrun("first_ddp.py"), re.MULTILINE)
    ]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True) and losses[-1] < 0.5


def train(folder: Path) -> None:
    """One process, then two ranks from its checkpoint; a file "stop" ends it, and the same command goes on."""
    options = ("--folder", str(folder), "--every", "10", "--steps")
    said = start(sys.executable, "scripts/train.py", *options, "20")
    assert re.fullmatch(r"attempt 0: 1 ranks start at step 0\nstep 20: loss \d\.\d+\n", said)
    (folder / "stop").touch()
    assert with_torchrun("train.py", *options, "40").splitlines()[-2:] == [
        "attempt 0: 2 ranks start at step 20",
        "stopped after step 21: the same command goes on from here",
    ]
    said = with_torchrun("train.py", *options, "40")
    assert "2 ranks start at step 21\n" in said and float(said.split()[-1]) < 1
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    assert [(line["step"], line["ranks"]) for line in lines] == [(10, 1), (20, 1), (21, 2), (30, 2), (40, 2)]


def replica_group(_folder: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.queue_push("quorum for B", json.dumps([1, {"B": 0}]))  # it is alone
    store.set("stop", "now")
    said = start(sys.executable, "scripts/replica_group.py", "B", str(store.port))
    assert said.splitlines() == ["B in step 0: B, weight 0.00", "B ends after step 1: weight 0.30"]


RUNS: dict[str, Callable[[Path], None]] = {
    f"{run.__name__}.py": run for run in (elastic_steps, all_reduce_clock, first_ddp, train, replica_group)
}


LONGEST = ("train.py", "first_ddp.py")  # up to seven processes that import DistributedDataParallel


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=[pytest.mark.extras] * (name in LONGEST)) for name in RUNS]
)
def test_script(script, tmp_path):
    RUNS[script](tmp_path)


def test_whatever_the_number_of_ranks_an_epoch_has_every_sample_once():
    indices = runpy.run_path(str(ROOT / "scripts" / "train.py"))["indices"]
    for ranks, batch in ((1, 4), (3, 4), (2, 7)):
        dealt = torch.cat([indices(10, start, batch * ranks, seed=1) for start in range(0, 60, batch * ranks)])
        for epoch in range(5):
            assert sorted(dealt[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10)), (ranks, batch)
        assert dealt[:10].tolist() != dealt[10:20].tolist(), "each epoch has an order of its own"


RUN_BY_LECTURES = ("hello_ranks.py", "what_torchrun_sets.py", "both_ways.py")
"""With an output that nbval compares."""


def test_every_script_is_run_by_a_test_or_a_lecture():
    cells = [cell for file in (ROOT / "notebooks").glob("*.ipynb") for cell in json.loads(file.read_text())["cells"]]
    compared = [cell for cell in cells if "nbval-ignore-output" not in cell["metadata"].get("tags", ())]
    code = "".join("".join(cell["source"]) for cell in compared if cell["cell_type"] == "code")
    for script in RUN_BY_LECTURES:
        assert re.search(rf"torchrun .*{script}|= .*\"{script}\"\n", code), f"no lecture runs scripts/{script}"
    programs = ["".join(cell["source"]) for cell in cells if "subprocess" in "".join(cell["source"])]
    other_tests = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    del other_tests[Path(__file__).name]
    for script in (
        path for path in (ROOT / "scripts").iterdir() if path.is_file() and path.name not in (*RUNS, *RUN_BY_LECTURES)
    ):
        assert any(script.name in text for text in (*other_tests.values(), *programs)), f"nothing runs {script.name}"


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "scripts").glob("*.sbatch")))
def test_a_batch_script_is_good_bash_and_asks_for_what_slurm_knows(script):
    """Also where there is no Slurm to run it."""
    path = ROOT / "scripts" / script
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True).stderr == ""
    text = path.read_text()
    assert "set -euo pipefail" in text
    wanted = re.findall(r"^#SBATCH --([a-z-]+)=", text, re.MULTILINE)
    assert {"job-name", "nodes", "ntasks-per-node", "time", "output"} <= set(wanted)
