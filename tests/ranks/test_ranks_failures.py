"""Faults injected into ranks: what the reader sees, what survives, and that it ends soon."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time

import pytest
from ranks_support import Recorder, eventually, gone

import utils
from utils.ranks import RankError, RanksInterrupted, RankTimeout, World, newer
from utils.ranks.failures import Outcome, hang_report

SOON = 15.0  # seconds: a bound on hanging, not a measurement
LEFT = "finished the cell, without that call or with one that did not fit"


# (What differs where ranks are spawned, their starts, signals and ends, is also tested in the other files.)
@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.nightly)], scope="module")
def start(request):
    return request.param


@pytest.fixture(scope="module")
def lasting_worlds():
    worlds = {}
    yield worlds
    for world in worlds.values():
        world.close()


@pytest.fixture
def world(start, lasting_worlds):
    """Four ranks that remember ``kept = rank``; new ones only where a test before has ended them."""
    if start not in lasting_worlds or not lasting_worlds[start].open:
        lasting_worlds[start] = World(4, start=start)
    world = lasting_worlds[start]
    world.run_cell("kept = rank")
    return world


@pytest.fixture(autouse=True)
def ends_soon():
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < SOON + 60


THERE = "open(f'{}/{{rank}}', 'w').close()\n"


@contextlib.contextmanager
def interrupts(folder, *pauses):
    """SIGINT for this process, so long after all four ranks have run THERE; more of them after more pauses."""
    over = threading.Event()

    def strike():
        eventually(lambda: len(list(folder.iterdir())) == 4 or over.is_set(), 60)
        for pause in pauses:
            if over.wait(pause):
                return  # it must not reach another test
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def still_works(world):
    """Variables are there, and a collective gives the right result."""
    source = "x = torch.tensor([float(kept)]); dist.all_reduce(x); (kept, x.item())"
    return world.run_cell(source) == {rank: str((rank, 6.0)) for rank in range(4)}


def fails(world, source, error=RankError, **options):
    with pytest.raises(error) as caught:
        world.run_cell(source, **options)
    return caught.value


def test_the_rank_that_failed_comes_first_and_the_others_say_where_they_waited(world):
    error = fails(world, "if rank == 2:\n    raise ValueError('boom')\ndist.all_reduce(torch.ones(1))")
    assert str(error) == "rank 2 failed: ValueError: boom"
    assert [(f.rank, f.ename, f.line) for f in error.failures][:1] == [(2, "ValueError", 2)]
    assert "raise ValueError('boom')" in error.failures[0].traceback
    assert "ranks 0, 1, 3 were waiting in all_reduce, line 3: dist.all_reduce(torch.ones(1))" in error.report
    assert still_works(world)


def test_the_first_of_several_failures_comes_first(world):
    source = (  # each lets the next one go, a moment before it fails itself
        "import time\n"
        "if rank < 3: dist.recv(torch.ones(1), rank + 1); time.sleep(0.1)\n"
        "if rank: dist.send(torch.ones(1), rank - 1)\n"
        "raise KeyError(f'from {rank}')"
    )
    error = fails(world, source)
    assert str(error) == "rank 3 failed: KeyError: 'from 3'"
    assert [failure.rank for failure in error.failures] == [3, 2, 1, 0]
    assert still_works(world)


def test_the_same_mistake_on_all_ranks_is_told_once_and_keeps_the_group(world):
    world.run_cell("half = dist.new_group([0, 1])")
    error = fails(world, "undefined_name")
    assert str(error) == "ranks 0–3 failed: NameError: name 'undefined_name' is not defined"
    # Nobody was left waiting, so even a group of the reader's own is still good.
    source = "y = torch.ones(1)\nif rank < 2: dist.all_reduce(y, group=half)\ny.item()"
    assert world.run_cell(source) == {0: "2.0", 1: "2.0", 2: "1.0", 3: "1.0"}


def test_a_traceback_shows_the_readers_lines_and_not_ours(world):
    world.run_cell("def inner():\n    return 1 / 0")
    text = fails(world, "def outer():\n    return inner()\nouter()").failures[0].traceback
    assert "return inner()" in text and "return 1 / 0" in text
    assert "utils/ranks" not in text


def test_sys_exit_in_a_cell_is_a_sentence_and_not_the_end(world):
    error = fails(world, "import sys; sys.exit(3)")
    assert "sys.exit() was called" in str(error)
    assert still_works(world)


def test_a_rank_that_never_arrives_is_named_at_the_time_out(world):
    source = "if rank != 3:\n    dist.barrier()"
    error = fails(world, source, RankTimeout, timeout=1)
    assert "did not end within 1 s" in str(error)
    assert "0     waiting in barrier  2     dist.barrier()" in error.report
    assert "3     finished the cell" in error.report
    assert f"ranks 0–2 wait in barrier for rank 3: rank 3 has {LEFT}." in error.report
    assert still_works(world)


def test_mismatched_collectives_are_told_apart(world):
    source = "x = torch.ones(4)\nif rank == 0:\n    dist.broadcast(x, src=1)\nelse:\n    dist.barrier()"
    error = fails(world, source, (RankTimeout, RankError), timeout=1.5)
    assert "in broadcast" in error.report and "in barrier" in error.report
    assert still_works(world)


def test_ranks_with_the_same_excuse_share_a_sentence(world):
    error = fails(world, "if rank == 0:\n    dist.barrier()", RankTimeout, timeout=1)
    assert f"rank 0 waits in barrier for ranks 1–3: ranks 1–3 have {LEFT}." in error.report
    assert still_works(world)


def test_a_receive_says_whom_it_waits_for(world):
    error = fails(world, "if rank == 1:\n    dist.recv(torch.ones(1), src=2)", RankTimeout, timeout=1)
    assert f"rank 1 waits in recv for rank 2: rank 2 has {LEFT}." in error.report
    assert still_works(world)


def test_failures_leave_no_file_descriptors_in_the_ranks(world):
    count = "import os; len(os.listdir('/proc/self/fd'))"
    fails(world, "if rank: dist.barrier()\nelse: raise ValueError()")
    before = world.run_cell(count)
    for _ in range(5):
        fails(world, "if rank: dist.barrier()\nelse: raise ValueError()")
        fails(world, "import time; time.sleep(9)", RankTimeout, timeout=0.2)
    assert world.run_cell(count) == before
    assert still_works(world)


def test_only_members_of_a_group_are_waited_for(world):
    world.run_cell("pair = dist.new_group([1, 3])")
    error = fails(world, "if rank == 1:\n    dist.all_reduce(torch.ones(1), group=pair)", RankTimeout, timeout=1)
    assert "rank 1 waits in all_reduce for rank 3:" in error.report
    assert still_works(world)


def test_a_rank_left_out_by_only_is_named(world):
    error = fails(world, "dist.barrier()", RankTimeout, only=[0, 1, 2], timeout=1)
    assert "rank 3 was not asked to run this cell (--only)" in error.report
    assert still_works(world)


def test_what_many_ranks_have_in_common_is_one_row_of_the_table():
    outcomes = [Outcome(rank, "absent" if rank else "stopped") for rank in range(64)]
    rows = hang_report(outcomes, "").splitlines()
    assert [row.split()[:2] for row in rows] == [["rank", "state"], ["0", "busy,"], ["1–63", "not"]]
    few = hang_report(outcomes[:5], "").splitlines()
    assert [row.split()[0] for row in few] == ["rank", "0", "1", "2", "3", "4"]


def test_an_endless_loop_ends_at_the_time_out(world):
    error = fails(world, "if rank == 1:\n    while True:\n        pass", RankTimeout, timeout=1)
    assert "1     busy" in error.report
    assert still_works(world)


def test_a_loop_that_swallows_interrupts_is_killed(world):
    source = "import time\nwhile rank == 0:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass"
    error = fails(world, source, RankTimeout, timeout=1)
    assert "killed by SIGKILL" in error.report
    assert not world.open


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "rank 1 was killed by SIGSEGV"),
        ("os.abort()", "rank 1 was killed by SIGABRT"),
        ("os._exit(7)", "rank 1 ended with exit code 7"),
    ],
)
def test_a_killed_rank_is_named_with_its_signal(world, how, says):
    pids = world.pids
    error = fails(world, f"import os, signal\nif rank == 1:\n    {how}\ndist.barrier()")
    assert str(error).startswith(says)
    assert "ranks 0, 2, 3 were waiting in barrier, line 4" in error.report
    assert "starts a new one" in error.report
    assert eventually(lambda: gone(pids))


def test_the_last_words_of_a_dying_rank_are_shown(world):
    view = Recorder()
    source = "import os\nif rank == 0:\n    os.write(2, b'last words of C++\\n'); os.abort()"
    fails(world, source, view=view)
    assert "rank 0: last words of C++" in view.text("stderr")


def test_a_killed_rank_comes_before_those_that_speak_of_its_connection(world):
    killed = "import os, signal, time\nif rank == 1:\n    time.sleep(0.2)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    error = fails(world, f"{killed}raise RuntimeError('Read error [127.0.0.1]:4: Connection reset by peer')")
    assert str(error).startswith("rank 1 was killed by SIGKILL")


def test_a_rank_killed_between_cells_is_noticed(world):
    os.kill(world.pids[2], signal.SIGKILL)
    assert eventually(lambda: world.dead_ranks() == {2: "killed by SIGKILL"})
    assert str(fails(world, "1")).startswith("rank 2 was killed by SIGKILL")


WAITS = "for all_reduce, which was begun before, and so for ranks 1–3: ranks 1–3 have finished the cell"
NO_COLLECTIVE = "in no call that names other ranks and with no collective begun"


@pytest.mark.skipif(newer.older_than(2, 11), reason="this torch's flight recorder does not follow gloo")
@pytest.mark.parametrize(
    ("before", "source"),
    [
        ("", "work.wait()"),
        ("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))", "loss.backward()"),
    ],
    ids=["a work", "backward of DDP"],
)
def test_a_wait_below_python_is_told_from_work(world, before, source):
    world.run_cell(before)
    begin = "loss = model(torch.ones(1, 2)).sum()" if before else "work = dist.all_reduce(torch.ones(1), async_op=True)"
    error = fails(world, f"if rank == 0:\n    {begin}\n    {source}", RankTimeout, timeout=1)
    assert re.search(rf"^0     waiting +3     {re.escape(source)}$", error.report, re.MULTILINE), error.report
    assert f"rank 0 waits in line 3 {WAITS}" in error.report
    assert still_works(world)


def test_who_computes_is_busy(world):
    error = fails(world, "if rank == 1:\n    while True: sum(range(1000))", RankTimeout, timeout=1)
    assert re.search(r"^1     busy +2 ", error.report, re.MULTILINE), error.report
    assert "waits in line" not in error.report
    assert still_works(world)


def test_a_sleep_is_no_collective(world):
    source = "x = torch.ones(1); dist.all_reduce(x)\nif rank == 0:\n    import time; time.sleep(60)"
    error = fails(world, source, RankTimeout, timeout=1)
    assert f"rank 0 waits in line 3, {NO_COLLECTIVE}" in error.report
    assert still_works(world)


@pytest.mark.skipif(newer.older_than(2, 11), reason="this torch's flight recorder does not follow gloo")
def test_who_spins_at_one_line_for_a_collective_waits_too(world):
    """As CUDA does in ``.item()`` after NCCL's call has returned: the thread computes, and gets no further."""
    world.run_cell(
        "import ctypes\nfrom utils.ranks import connections\n"
        "libc, lock, real = ctypes.CDLL(None), ctypes.c_int(0), connections.abort_communication\n"
        "def abort(pids):\n    libc.pthread_spin_unlock(ctypes.byref(lock)); real(pids)\n"
        "connections.abort_communication = abort\n"
        "libc.pthread_spin_init(ctypes.byref(lock), 0); libc.pthread_spin_lock(ctypes.byref(lock))"
    )
    source = (
        "if rank == 0:\n    work = dist.all_reduce(torch.ones(1), async_op=True)\n"
        "    libc.pthread_spin_lock(ctypes.byref(lock))"
    )
    error = fails(world, source, RankTimeout, timeout=1)
    assert re.search(r"^0     waiting +3     libc.pthread_spin_lock", error.report, re.MULTILINE), error.report
    assert f"rank 0 waits in line 3 {WAITS}" in error.report
    assert still_works(world)
    world.run_cell("connections.abort_communication = real")


@pytest.mark.skipif(newer.older_than(2, 11), reason="this torch's flight recorder does not follow gloo")
def test_who_spins_at_one_line_while_the_gpu_works_waits_for_the_gpu(world):
    """As CUDA does in ``synchronize()`` behind a long kernel, with a stream that says that it is not done."""
    world.run_cell(
        "import ctypes\nreal = torch.cuda.is_initialized, torch.cuda.default_stream\n"
        "class Stream:\n    def query(self): return rank == 1\n"
        "torch.cuda.is_initialized, torch.cuda.default_stream = lambda: True, lambda gpu: Stream()\n"
        "libc, lock = ctypes.CDLL(None), ctypes.c_int(0)\n"
        "libc.pthread_spin_init(ctypes.byref(lock), 0); libc.pthread_spin_lock(ctypes.byref(lock))\n"
        "from utils.ranks import connections\naborted = connections.abort_communication\n"
        "def abort(pids):\n    libc.pthread_spin_unlock(ctypes.byref(lock)); aborted(pids)\n"
        "connections.abort_communication = abort"
    )
    error = fails(world, "if rank < 2:\n    libc.pthread_spin_lock(ctypes.byref(lock))", RankTimeout, timeout=1)
    assert re.search(r"^0     waiting +2     libc.pthread_spin_lock", error.report, re.MULTILINE), error.report
    assert re.search(r"^1     busy +2     libc.pthread_spin_lock", error.report, re.MULTILINE), error.report
    assert "rank 0 waits in line 2, in no call that names other ranks" in error.report
    assert "no collective begun: for a GPU, which still works." in error.report
    world.run_cell(
        "(torch.cuda.is_initialized, torch.cuda.default_stream), connections.abort_communication = real, aborted"
    )
    assert still_works(world)


def test_a_stopped_rank_does_not_hang_the_notebook(world):
    os.kill(world.pids[1], signal.SIGSTOP)
    error = fails(world, "dist.barrier()", RankTimeout, timeout=1)
    assert "rank 1" in error.report
    assert not world.open


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(60)",
        "while True: pass",
        "if rank: dist.barrier()\nelse:\n    import time; time.sleep(60)",
    ],
    ids=["asleep", "busy", "in a collective"],
)
def test_an_interrupt_ends_with_the_table_and_keeps_variables(world, source, tmp_path):
    with interrupts(tmp_path, 0.3):
        error = fails(world, THERE.format(tmp_path) + source, RanksInterrupted)
    assert "rank  state" in error.report
    assert still_works(world)


def test_a_cell_that_prints_without_end_can_be_stopped_at_any_moment(world):
    for tenths in range(3, 9):
        fails(world, "while True: print('x' * 5000)", RankTimeout, timeout=tenths / 10)
        assert still_works(world)


def test_a_loop_of_collectives_can_be_stopped_at_any_moment(world):
    for hundredths in range(20, 36, 2):
        fails(world, "while True: dist.all_reduce(torch.ones(1000))", RankTimeout, timeout=hundredths / 100)
        assert still_works(world)


def test_an_import_of_a_part_of_torch_is_not_cut_in_the_middle(world, tmp_path):
    """As the first DDP of a rank does it; the rest of the cell is."""
    slow = "import time\nbegin = time.monotonic()\nwhile time.monotonic() < begin + 1:\n    pass\nwhole = True"
    (tmp_path / "slow_for_a_test.py").write_text(slow)
    world.run_cell(f"torch.__path__.append({str(tmp_path)!r})")
    error = fails(world, "import torch.slow_for_a_test, time\ntime.sleep(60)", RankTimeout, timeout=0.3)
    assert "killed" not in error.report
    assert world.run_cell("torch.slow_for_a_test.whole") == dict.fromkeys(range(4), "True")
    assert still_works(world)
    world.run_cell("del torch.__path__[-1]")


def test_two_interrupts_kill_what_the_first_could_not_stop(world, tmp_path):
    source = "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass"
    with interrupts(tmp_path, 0.3, 1.5):
        fails(world, THERE.format(tmp_path) + source, RanksInterrupted)
    assert not world.open


def test_a_value_that_cannot_be_pulled_is_a_sentence(world):
    world.run_cell("lock = __import__('threading').Lock()")
    with pytest.raises(RankError, match="cannot pickle"):
        world.pull("lock")
    with pytest.raises(RankError, match="NameError"):
        world.pull("not_there")
    assert still_works(world)


def test_an_unpicklable_result_of_launch_is_a_sentence():
    with pytest.raises(RankError, match="cannot pickle"):
        utils.launch(lambda: __import__("threading").Lock(), ranks=2)


def test_launch_reports_a_hang_and_leaves_nothing(tmp_path):
    def work(folder):
        import os
        import time

        open(f"{folder}/{os.getpid()}", "w").close()
        time.sleep(60)

    with pytest.raises(RankTimeout, match=r"the function did not end within 4 s \(timeout=8"):
        utils.launch(work, str(tmp_path), ranks=2, timeout=4)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    assert eventually(lambda: gone(pids))


def test_launch_takes_a_function_first():
    with pytest.raises(TypeError, match="takes a function"):
        utils.launch(3)
