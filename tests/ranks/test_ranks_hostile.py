"""Nothing that a reader's code does ends a rank by accident: odd objects, broken streams, emptied tables."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from ranks_support import Recorder, eventually

from utils.ranks import RankError, RankTimeout, World, starters


@pytest.fixture(scope="module", params=["fork", "spawn"])
def lasting(request):
    worlds = [World(2, start=request.param)]
    yield worlds
    worlds[0].close()


@pytest.fixture
def world(lasting):
    """Two ranks that remember ``kept = rank``, and must do so after the test."""
    world = lasting[0]
    world.run_cell("kept = rank")
    yield world
    assert world.open, "the world has ended"
    assert world.run_cell("kept") == {0: "0", 1: "1"}


def fails(world, source, error=RankError, **options):
    with pytest.raises(error) as caught:
        world.run_cell(source, **options)
    return caught.value


ODD = "class Odd(Exception):\n    def __str__(self): {}\nraise Odd()"


def test_an_exception_whose_text_raises_is_an_exception_like_others(world):
    error = fails(world, ODD.format("raise ValueError('no text')"))
    assert error.failures[0].ename == "Odd"
    assert "its text cannot be shown" in str(error)


def test_an_exception_whose_text_never_ends_is_cut_at_the_time_out(world):
    error = fails(world, "import time\n" + ODD.format("time.sleep(1000)"), RankTimeout, timeout=1)
    assert "did not end within 1 s" in str(error)


def test_an_exception_whose_text_is_no_text(world):
    assert "its text cannot be shown" in str(fails(world, ODD.format("return 3")))


def test_a_value_whose_text_raises_fails_its_cell(world):
    error = fails(world, "class Odd:\n    def __repr__(self): raise ValueError('no text')\nOdd()")
    assert str(error) == "ranks 0, 1 failed: ValueError: no text"


def test_a_value_whose_text_never_ends_is_stopped(world):
    fails(world, "class Odd:\n    def __repr__(self):\n        while True: pass\nOdd()", RankTimeout, timeout=1)


@pytest.mark.parametrize(
    "source",
    [
        "import sys; before = dict(sys.modules); sys.modules.clear()",
        "import builtins; real_print = print; builtins.print = None",
        "import sys; before = sys.stdout, sys.stderr; sys.stdout.close(); sys.stderr.close()",
        "import sys; before = sys.stdout, sys.stderr; sys.stdout = sys.stderr = None",
        "import os; kept_1, kept_2 = os.dup(1), os.dup(2); os.close(1); os.close(2)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)",
        "import sys; sys.setrecursionlimit(60)",
        "import time; real_clock = time.monotonic; time.monotonic = None",
        "dist_alive = dist.is_initialized; dist.is_initialized = None",
    ],
    ids=["modules", "print", "closed", "none", "descriptors", "signal", "recursion", "clock", "dist"],
)
def test_a_rank_works_on_after(source):
    with World(2) as world:
        world.run_cell("kept = rank")
        world.run_cell(source)
        assert world.run_cell("kept + 1") == {0: "1", 1: "2"}
        fails(world, "undefined_name")
        assert world.run_cell("kept") == {0: "0", 1: "1"}


def test_a_signal_between_cells_whose_handler_raises_ends_nothing(world, tmp_path):
    ring = (
        f"import pathlib, signal\ndef ring(*_): pathlib.Path('{tmp_path}', str(rank)).touch(); raise ValueError('no')"
    )
    world.run_cell(f"{ring}\nsignal.signal(signal.SIGALRM, ring)")
    for pid in world.pids:
        os.kill(pid, signal.SIGALRM)
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    assert world.run_cell("kept") == {0: "0", 1: "1"}


def test_recursion_to_the_limit_is_an_error_of_the_cell(world):
    assert "RecursionError" in str(fails(world, "def deeper(): deeper()\ndeeper()"))


def test_a_completion_that_never_ends_does_not_keep_the_rank_from_anything(world):
    world.run_cell("class Odd:\n    def __dir__(self):\n        while True: pass\nodd = Odd()")
    assert world.complete("odd.a") == []
    fails(world, "import time; time.sleep(1000)", RankTimeout, timeout=1)


def test_a_late_answer_to_a_completion_is_not_taken_for_the_next(world):
    slow = "import time\nclass Slow:\n    def __dir__(self):\n        time.sleep(1); return ['late']\nslow = Slow()\n"
    world.run_cell(slow + "quick_name = 1")
    assert world.complete("slow.la") == []
    assert eventually(lambda: world.complete("quick_na") == ["quick_name"])
    assert all(world.complete("quick_na") in ([], ["quick_name"]) for _ in range(3))  # none: it was too slow


def test_a_rank_that_stops_its_parent_stops_nobody_else():
    with World(1) as world:
        world.run_cell("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)")
        zygote = psutil.Process(starters.starter("fork").pid)
        assert eventually(lambda: zygote.status() == psutil.STATUS_STOPPED)
        assert world.run_cell("rank") == {0: "0"}
    with World(1) as world:
        assert world.run_cell("rank") == {0: "0"}


def test_a_thread_of_the_reader_that_prints_and_raises_is_text_like_other():
    view = Recorder()
    with World(1) as world:
        source = "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()"
        world.run_cell(source, view=view)
    assert "ZeroDivisionError" in view.text("stderr")
