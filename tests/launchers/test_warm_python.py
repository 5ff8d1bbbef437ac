"""Copies of a process that has imported: they look like fresh processes to whoever starts them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from utils.launchers import torchrun, warm_python

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are forked on Linux only")


@pytest.fixture(scope="module", autouse=True)
def warm():
    with warm_python.running("torch", "torch.distributed.run"):
        yield


def run(program, *args, **options):
    return subprocess.run(
        [warm_python.executable(), *args, program], capture_output=True, text=True, timeout=60, **options
    )


def written(folder, text):
    program = folder / "program.py"
    program.write_text(text)
    return program


def test_a_copy_has_torch_already_and_a_fresh_process_has_not(tmp_path):
    program = written(tmp_path, "import sys; print('torch' in sys.modules, __name__, sys.argv[0] == __file__)")
    assert run(program).stdout == "True __main__ True\n"
    fresh = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert fresh.stdout == "False __main__ True\n"


def test_a_copy_has_the_folder_environment_modules_and_open_files_of_who_started_it(tmp_path):
    (tmp_path / "beside.py").write_text("word = 'beside'")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "installed.py").write_text("word = 'installed'")
    program = written(
        tmp_path,
        "import os, beside, installed\n"
        "print(os.getcwd(), os.environ.get('WORD'), beside.word, installed.word, os.environ.get('HOME'))\n"
        "os.write(int(os.environ['FD']), b'through a file')",
    )
    read, write = os.pipe()
    env = {"PATH": os.environ["PATH"], "WORD": "told", "PYTHONPATH": str(tmp_path / "packages"), "FD": str(write)}
    ended = run(program, cwd=tmp_path / "packages", env=env, pass_fds=[write])
    assert ended.stdout.split() == [str(tmp_path / "packages"), "told", "beside", "installed", "None"]
    assert os.read(read, 100) == b"through a file"
    os.close(read), os.close(write)


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no space')", 1, "no space\n"),
        ("import os; os._exit(5)", 5, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
    ],
)
def test_whoever_started_it_sees_how_it_ended(tmp_path, ending, code, said):
    ended = run(written(tmp_path, ending))
    assert (ended.returncode, ended.stderr) == (code, said)


def test_a_traceback_begins_in_the_program(tmp_path):
    ended = run(written(tmp_path, "def f():\n    1 / 0\n\n\nf()"))
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and 'program.py", line 5' in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_signal_is_passed_on_and_a_copy_dies_with_its_stand_in(tmp_path):
    program = written(tmp_path, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    for number in signal.SIGTERM, signal.SIGKILL:
        stand_in = subprocess.Popen([warm_python.executable(), program], stdout=subprocess.PIPE, text=True)
        copy = psutil.Process(int(stand_in.stdout.readline()))
        assert copy.pid != stand_in.pid
        stand_in.send_signal(number)
        assert stand_in.wait(30) == -number
        psutil.wait_procs([copy], timeout=30)
        assert not copy.is_running()


def test_end_waits_until_all_copies_with_a_mark_have_gone(tmp_path):
    program = written(tmp_path, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    options = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | {"MARK_OF_THIS": "mark-1"}}
    stand_in = subprocess.Popen([warm_python.executable(), program], **options)
    pid = int(stand_in.stdout.readline())
    warm_python.end("mark-2")
    assert psutil.pid_exists(pid)
    warm_python.end("mark-1")
    assert not psutil.pid_exists(pid)
    assert stand_in.wait(30) == -signal.SIGKILL


def test_a_variable_that_torch_reads_at_its_import_gets_a_fresh_process(tmp_path):
    program = written(tmp_path, "import sys; print('torch' in sys.modules)")
    assert run(program, env=os.environ | {"TORCH_CPP_LOG_LEVEL": "INFO"}).stdout == "False\n"


def test_torchrun_starts_its_workers_anew_from_copies():
    run = torchrun.run_agents(SCRIPTS / "failures/dies_once.py", nodes=1, per_node=2, max_restarts=1)
    assert [worker.output.splitlines()[-1] for worker in run.workers] == [
        "attempt 1: rank 0 is done",
        "attempt 1: rank 1 is done",
    ]


def test_it_ends_with_the_process_that_started_it(tmp_path):
    program = written(
        tmp_path,
        "import time\nfrom utils.launchers import warm_python\nwarm_python.start('json')\n"
        "print(warm_python._process.pid, flush=True)\ntime.sleep(60)",
    )
    starter = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    server = psutil.Process(int(starter.stdout.readline()))
    time.sleep(1)  # it asks to end with its parent first thing
    starter.kill()
    starter.wait()
    psutil.wait_procs([server], timeout=30)
    assert not server.is_running()
