"""scripts/frameworks: the programs do one training under their launchers, and end as the lecture says; none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lessons.launchers import extras, frameworks, processes, torchrun, warm_process
from utils.training.same_training import STEPS

pytestmark = pytest.mark.frameworks
CLOSE = 1e-5  # of losses and weights near 1, in float32, added up in another order: seen 1e-7
LATE = 240.0  # seconds; each run takes three to six on a quiet machine
NEWER = ["jax", "accelerate", "deepspeed"]
NO_MPI = pytest.mark.skipif(bool(extras.missing("mpi4py")), reason=extras.sentence(["mpi4py"]))
NO_NEWER = pytest.mark.skipif(bool(extras.missing(*NEWER)), reason=extras.sentence(NEWER))
NO_HOROVOD = pytest.mark.skipif(bool(extras.missing("horovod")), reason=extras.sentence(["horovod"]))
BESIDE_DDP = [  # (the lecture runs all of them with 2 and with 4 workers)
    pytest.param("with_mpi.py", 2, marks=NO_MPI),
    pytest.param("with_horovod.py", 4, marks=NO_HOROVOD),
    pytest.param("with_jax.py", 2, marks=NO_NEWER),
    pytest.param("with_accelerate.py", 4, marks=NO_NEWER),
    pytest.param("with_deepspeed.py", 2, marks=NO_NEWER),
]


@pytest.fixture(scope="module", autouse=True)
def imported_once() -> Iterator[None]:
    with frameworks.warm("torch"):
        yield


@pytest.fixture(scope="module")
def ddp(imported_once: None) -> frameworks.RunResult:
    return frameworks.run("with_ddp.py", timeout=LATE)


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    left = processes.marked(frameworks.MARK, f"{os.getpid()}-")
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def far_apart(one: frameworks.RunResult, other: frameworks.RunResult) -> float:
    losses = max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))
    weights = max(abs(a - b).max() for a, b in zip(one.weights, other.weights, strict=True))
    return max(losses, float(weights))


def last_lines(ran: frameworks.RunResult) -> list[str]:
    return [worker.output.splitlines()[-1] for worker in ran.workers]


# ---------------------------------------------------------------------- one training
def test_ddp_learns_and_its_workers_end_with_equal_weights(ddp):
    assert (ddp.code, len(ddp.losses), [worker.steps for worker in ddp.workers]) == (0, STEPS, [STEPS] * 2)
    assert ddp.losses[0] > 2 and ddp.losses[-1] < 0.4 and len(set(last_lines(ddp))) == 1
    assert (
        set(ddp.files) == {"ddp.json", "model.pt"} and ddp.command == "torchrun --nproc-per-node=2 with_ddp.py FOLDER"
    )


def test_workers_that_are_copies_train_what_those_of_a_torchrun_of_ones_own_do(ddp, tmp_path):
    torchrun.run_agents(frameworks.SCRIPTS / "with_ddp.py", str(tmp_path), nodes=1, timeout=LATE)
    found = json.loads((tmp_path / "ddp.json").read_text(encoding="utf-8"))
    assert (found["losses"], found["weights"]) == (ddp.losses, ddp.found["weights"])


@pytest.mark.parametrize(("program", "workers"), BESIDE_DDP)
def test_other_frameworks_do_the_same_training(ddp, program, workers):
    ran = frameworks.run(program, workers, timeout=LATE)
    assert ran.code == 0, ran
    assert far_apart(ran, ddp) < CLOSE
    assert [worker.steps for worker in ran.workers] == [STEPS] * workers and len(set(last_lines(ran))) == 1
    assert any(name.startswith("model.") for name in ran.files) and len(ran.files) == 2


@NO_MPI
def test_torch_ranks_can_be_started_by_mpiexec(ddp):
    ran = frameworks.run("with_ddp.py", by="mpiexec", timeout=LATE)
    assert ran.command == "mpiexec -n 2 python as_torchrun.py with_ddp.py FOLDER"
    assert ran.losses == ddp.losses


# ---------------------------------------------------------------------- forgotten lines
@NO_MPI
def test_a_sum_of_gradients_is_another_training(ddp, tmp_path):
    ran = frameworks.run(frameworks.edited("with_mpi.py", {"parameter.grad /= workers": ""}, tmp_path), timeout=LATE)
    assert far_apart(ran, ddp) > 0.1 and ran.losses[0] == pytest.approx(ddp.losses[0])


@NO_HOROVOD
def test_without_a_broadcast_the_workers_train_models_of_their_own(tmp_path):
    line = {"hvd.broadcast_parameters(model.state_dict(), root_rank=0)": ""}
    ran = frameworks.run(frameworks.edited("with_horovod.py", line, tmp_path), timeout=LATE)
    assert ran.losses[-1] < 0.6, "the loss does not show it"
    assert len(set(last_lines(ran))) == 2


# ---------------------------------------------------------------------- a worker dies
@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("with_ddp.py", 1, "SIGKILL"),
        pytest.param("with_mpi.py", 9, "BAD TERMINATION", marks=NO_MPI),
        pytest.param("with_horovod.py", 1, "Process name: 1\nExit code: 137", marks=NO_HOROVOD),
    ],
)
def test_when_a_worker_dies_all_end_and_nothing_is_kept(program, code, words):
    ran = frameworks.run(program, kill_at=10, timeout=LATE)
    assert (ran.code, ran.files) == (code, {}) and words in ran.launcher, ran
    assert all(10 <= worker.steps < STEPS for worker in ran.workers), ran
    with pytest.raises(RuntimeError, match="has not finished its training"):
        ran.losses  # noqa: B018


# ---------------------------------------------------------------------- launchers and their words
@NO_MPI
def test_mpiexec_counts_local_ranks_on_each_node_and_goes_around_when_slots_are_few():
    said = frameworks.mpiexec(
        *("-launcher", "fork", "-hosts", "node0:2,node1:2", "-n", "6"), "python", frameworks.SCRIPTS / "mpi_words.py"
    )
    local = ["0 of 4", "1 of 4", "0 of 2", "1 of 2", "2 of 4", "3 of 4"]
    assert said.splitlines() == [f"rank {rank} of 6, local rank {which}" for rank, which in enumerate(local)]


@NO_MPI
def test_an_all_reduce_of_mpi_works_in_the_tensors_own_memory():
    said = frameworks.mpiexec("-n", "2", "python", frameworks.SCRIPTS / "mpi_all_reduce.py")
    assert said.count("[21.0, 21.0, 21.0], same memory: True; ranks add up to 1") == 2


@NO_HOROVOD
def test_horovodrun_refuses_more_processes_than_slots():
    said = frameworks.horovodrun("-np", "4", "-H", "localhost:2", "python", "-c", "print(1)")
    assert "Requested more processes (4) than there are available slots (2)" in said


@NO_MPI
def test_a_launcher_that_takes_too_long_is_ended(tmp_path):
    program = tmp_path / "mpi_sleeps.py"
    program.write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n", encoding="utf-8")
    ran = frameworks.run(program, timeout=20)
    assert ran.code is None and [worker.output for worker in ran.workers] == ["here\n"] * 2


# ---------------------------------------------------------------------- a python that has imported already
@pytest.fixture(scope="module")
def warm_python() -> Iterator[str]:
    with warm_process.python(["decimal", "numpy.random"], {**os.environ}) as python:
        yield str(python)


def test_a_warm_python_has_imported_what_it_was_told_and_gets_what_it_is_given(warm_python, tmp_path):
    program = tmp_path / "tells.py"
    program.write_text(
        "import os, sys\n"
        "print('decimal' in sys.modules, sys.argv[1:], sys.path[0], os.environ['HERE'], os.getcwd(), input())\n"
        "print('words', file=sys.stderr)\n"
        "os.write(int(sys.argv[1]), b'through a file of the launcher')\n"
        "sys.exit(7)\n",
        encoding="utf-8",
    )
    read, write = os.pipe()
    ran = subprocess.run(
        [warm_python, "-u", program, str(write)],
        env={**os.environ, "HERE": "yes"},
        cwd=tmp_path,
        input="hello\n",
        capture_output=True,
        text=True,
        pass_fds=[write],
    )
    assert ran.stdout == f"True ['{write}'] {tmp_path} yes {tmp_path} hello\n"
    assert (ran.returncode, ran.stderr) == (7, "words\n")
    assert os.read(read, 100) == b"through a file of the launcher"
    os.close(read), os.close(write)


def test_programs_of_a_warm_python_draw_different_numbers(warm_python, tmp_path):
    program = tmp_path / "draws.py"
    program.write_text("import numpy\nprint(numpy.random.rand())\n", encoding="utf-8")
    drawn = [subprocess.run([warm_python, program], capture_output=True, text=True).stdout for _ in range(2)]
    assert float(drawn[0]) != float(drawn[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_of_a_warm_python_ends_with_the_process_that_stands_for_it(warm_python, tmp_path, number):
    program = tmp_path / "sleeps.py"
    program.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n", encoding="utf-8")
    with subprocess.Popen([warm_python, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sleeper = psutil.Process(int(process.stdout.readline()))
        process.send_signal(number)
        assert process.wait(LATE) == -number
    sleeper.wait(LATE)


def test_programs_end_with_the_warm_python_and_with_whoever_has_started_it(tmp_path):
    program = tmp_path / "sleeps.py"
    program.write_text(
        "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, flush=True)\nchild.wait()\n",
        encoding="utf-8",
    )

    def sleepers(python: str | Path, into: subprocess.Popen[str] | None = None) -> list[psutil.Process]:
        process = into or subprocess.Popen([python, program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]

    with warm_process.python([], {**os.environ}) as python:
        left = sleepers(python)
    assert psutil.wait_procs(left, timeout=LATE)[1] == []
    starter = (
        "import os, subprocess, sys\nfrom lessons.launchers import warm_process\n"
        "with warm_process.python([], {**os.environ}) as python: subprocess.run([python, sys.argv[1]])\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter, program], stdout=subprocess.PIPE, text=True) as notebook:
        left = sleepers("", notebook)
        notebook.kill()
    assert psutil.wait_procs(left, timeout=LATE)[1] == []


def test_a_warm_python_runs_what_is_no_program_as_ever_and_shows_an_error(warm_python, tmp_path):
    assert subprocess.run([warm_python, "-c", "print(1)"], capture_output=True, text=True).stdout == "1\n"
    program = tmp_path / "fails.py"
    program.write_text("raise ValueError('on purpose')\n", encoding="utf-8")
    ran = subprocess.run([warm_python, program], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stderr.endswith("ValueError: on purpose\n")


# ---------------------------------------------------------------------- copies with a change
def test_an_edited_copy_differs_in_what_was_asked_and_a_line_of_which_nothing_is_left_goes(tmp_path):
    changes = {"parameter.grad /= workers": "", "lr=LEARNING_RATE": "lr=1.0"}
    copy = frameworks.edited("with_mpi.py", changes, tmp_path).read_text(encoding="utf-8").splitlines()
    lines = (frameworks.SCRIPTS / "with_mpi.py").read_text(encoding="utf-8").splitlines()
    gone, new = [line for line in lines if line not in copy], [line for line in copy if line not in lines]
    assert len(copy) == len(lines) - 1
    assert [line.strip() for line in gone][1] == "parameter.grad /= workers" and "lr=1.0" in new[0] and len(new) == 1


def test_a_change_that_does_not_fit_once_is_refused(tmp_path):
    with pytest.raises(ValueError, match="0 times, not once"):
        frameworks.edited("with_mpi.py", {"no such line": ""}, tmp_path)
    with pytest.raises(ValueError, match="times, not once"):
        frameworks.edited("with_mpi.py", {"import": ""}, tmp_path)


@pytest.mark.parametrize("program", sorted(path.name for path in frameworks.SCRIPTS.glob("with_*.py")))
def test_each_program_says_how_it_is_started_by_hand(program: str):
    docstring = Path(frameworks.SCRIPTS, program).read_text(encoding="utf-8").split('"""')[1]
    assert program in docstring.split("\n\n")[1]
