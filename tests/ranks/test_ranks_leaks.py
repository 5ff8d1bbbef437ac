"""Nothing is left over: no process, file descriptor, socket, temporary file or shared-memory segment."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import tempfile
import time

import psutil
import pytest
from kernel_support import Kernel
from ranks_support import descendants, eventually, file_descriptors, gone, shared_memory

from utils.ranks import World, preload, starters


def loopback_listeners(pids):
    return [c for pid in pids for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]


def test_the_zygote_is_safe_to_fork_from():
    with World(1):
        zygote = starters.starter("fork")
        assert zygote.threads == 1
        assert psutil.Process(zygote.pid).num_threads() == 1
        with open(f"/proc/{zygote.pid}/maps") as maps:
            assert "libcuda.so" not in maps.read()


def test_the_zygote_learns_what_ranks_import_and_stays_safe_to_fork_from():
    starters.shut_down()  # a new zygote, which has learned nothing yet
    make_optimizer = "torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1);"
    has_compiler = "import sys; 'torch._dynamo' in sys.modules"
    with World(1) as world:
        zygote = starters.starter("fork")
        assert world.run_cell(has_compiler) == {0: "False"}
        world.run_cell(make_optimizer)
    with World(1) as world:
        assert world.run_cell(has_compiler) == {0: "True"}
        world.run_cell(make_optimizer)
    assert psutil.Process(zygote.pid).num_threads() == 1


def test_modules_that_are_preloaded_are_there_in_later_ranks_and_one_that_is_missing_does_no_harm():
    there = "import sys; 'wsgiref.validate' in sys.modules"
    with World(1, start="fork") as world:
        assert world.run_cell(there) == {0: "False"}
    preload("no.such.module", "wsgiref.validate")
    with World(1, start="fork") as world:
        assert world.run_cell(there) == {0: "True"}


@pytest.mark.nightly
def test_a_hundred_worlds_leave_as_many_file_descriptors_as_before():
    World(2).close()  # the zygote starts with the first
    before, shm = file_descriptors(), shared_memory()
    zygote = starters.starter("fork")
    idle_zygote = 6  # standard streams, the channel, the two ends of its wake-up pipe
    # (A little later: just now it may have a file open, to see whom the last rank has left behind.)
    assert eventually(lambda: len(os.listdir(f"/proc/{zygote.pid}/fd")) == idle_zygote)
    temporary = set(os.listdir(tempfile.gettempdir()))
    for _ in range(100):
        with World(2) as world:
            pids = world.pids
        assert gone(pids)
    assert file_descriptors() == before
    assert eventually(lambda: len(os.listdir(f"/proc/{zygote.pid}/fd")) == idle_zygote)
    assert eventually(lambda: shared_memory() <= shm, 60)  # other programs use it too, for a while
    assert not [name for name in set(os.listdir(tempfile.gettempdir())) - temporary if "rank" in name]


@pytest.mark.nightly
def test_spawned_worlds_leave_nothing_either():
    World(1, start="spawn").close()
    before = file_descriptors()
    for _ in range(3):
        with World(1, start="spawn") as world:
            pids = world.pids
        assert gone(pids)
    assert file_descriptors() == before


def test_ranks_listen_on_loopback_only():
    with World(3) as world:
        world.run_cell("dist.barrier()")
        listeners = loopback_listeners(world.pids)
        assert listeners  # gloo's own
        assert {c.laddr.ip for c in listeners} <= {"127.0.0.1", "::1"}
        assert not loopback_listeners([starters.starter("fork").pid])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_a_rank_started_ends_with_it(start):
    with World(1, start=start) as world:
        source = "import subprocess\nchild = subprocess.Popen(['sleep', '100'])\nchild.pid"
        child = int(world.run_cell(source)[0])
        assert psutil.pid_exists(child)
    assert eventually(lambda: gone([child]))


def test_a_grandchild_that_left_the_process_group_ends_with_its_rank():
    with World(1) as world:
        source = "import subprocess\nsubprocess.Popen(['sleep', '100'], start_new_session=True).pid"
        child = int(world.run_cell(source)[0])
        os.kill(world.pids[0], signal.SIGKILL)
        assert eventually(lambda: gone([child]))


BUSY = {
    "idle": "1",
    "in a collective": "if rank == 0: dist.barrier()\nelse:\n    import time; time.sleep(100)",
    "busy": "while True: pass",
    "deaf": "import ctypes; ctypes.PyDLL(None).sleep(100)",  # in C, and holding the GIL: no thread of it can react
}


# (A spawned one that can react would have to be told by what ends a deaf one, too.)
EACH_WAY = [pytest.param(what, "fork", id=f"{what}-fork") for what in BUSY]
EACH_WAY += [
    pytest.param(what, "spawn", id=f"{what}-spawn", marks=[pytest.mark.nightly] * (what != "deaf")) for what in BUSY
]


@pytest.mark.parametrize(("what", "start"), EACH_WAY)
def test_no_rank_survives_a_kernel_killed_with_sigkill(what, start):
    with Kernel(RANKS_START=start) as kernel:
        kernel.run("%load_ext utils")
        kernel.run("%%ranks -n 2\nimport subprocess\nchild = subprocess.Popen(['sleep', '100'])")
        request = kernel.start(f"%%ranks --timeout 0\n{BUSY[what]}")
        if what == "idle":
            kernel.finish(request)
        else:
            time.sleep(1)
        pids = descendants(kernel.pid)
        assert len(pids) >= 4  # two ranks, their children, and under fork the zygote
        kernel.kill()
        assert eventually(lambda: gone(pids), 20)


def test_ranks_end_when_the_zygote_is_killed_and_the_next_world_works():
    with World(2) as world:
        pids = world.pids
        os.kill(starters.starter("fork").pid, signal.SIGKILL)
        assert eventually(lambda: gone(pids))
    with World(2) as world:
        assert world.run_cell("rank") == {0: "0", 1: "1"}


def test_a_kernel_that_restarts_leaves_no_ranks():
    with Kernel() as kernel:
        kernel.run("%load_ext utils")
        kernel.run("%%ranks -n 2\n1")
        pids = descendants(kernel.pid)
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=60)
        assert eventually(lambda: gone(pids))


def test_unloading_the_extension_ends_everything():
    with Kernel() as kernel:
        kernel.run("%load_ext utils")
        kernel.run("%%ranks -n 2\n1")
        pids = descendants(kernel.pid)
        assert len(pids) == 3
        kernel.run("%unload_ext utils")
        assert eventually(lambda: gone(pids))


def test_a_process_that_the_notebook_forks_does_not_keep_ranks_alive():
    with Kernel() as kernel:
        kernel.run("%load_ext utils")
        kernel.run("%%ranks -n 2\n1")
        ranks = descendants(kernel.pid)
        kernel.run("import os, time\nforked = os.fork()\nif forked == 0:\n    time.sleep(60)\n    os._exit(0)")
        (forked,) = set(descendants(kernel.pid)) - set(ranks)
        try:
            kernel.kill()
            assert eventually(lambda: gone(ranks), 20)
        finally:
            os.kill(forked, signal.SIGKILL)


@pytest.mark.nightly
def test_eight_kernels_at_once_do_not_disturb_each_other():
    def one(number: int) -> tuple[int, str, list[int]]:
        with Kernel(RANKS_LIVE="0") as kernel:
            kernel.run("%load_ext utils")
            text = kernel.text(
                f"%%ranks -n 2\nx = torch.tensor([{number}.0])\n"
                "for _ in range(20): dist.all_reduce(x, op=dist.ReduceOp.MAX)\n"
                "x.item()",
                120,
            )
            return number, text, descendants(kernel.pid)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(8)))
    for number, text, _ in results:
        assert text == f"ranks 0, 1: {float(number)}\n"
    pids = [pid for _, _, some in results for pid in some]
    assert len(pids) == 24
    assert eventually(lambda: gone(pids))
