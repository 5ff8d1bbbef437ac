"""Ranks that stand still are ended at once and named; whatever only takes long is waited for."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from checks import Wrong
from checks.engine import memory, standstill
from checks.engine.answers import Answer
from checks.engine.processes import StoodStill, run, run_to_the_ends
from checks.engine.standstill import Watch, table, who_waits


# ---------------------------------------------------------------------- who stands still
def _long_work(seconds: float) -> int:
    """Rank 1 computes, rank 0 waits for it."""
    if dist.get_rank() == 1:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))
    dist.barrier()
    return dist.get_rank()


def _one_leaves() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


def _one_raises(answer) -> None:
    answer()
    dist.barrier()


def test_a_rank_that_takes_long_is_waited_for():
    ends = run_to_the_ends(_long_work, 2.5, ranks=2)
    assert [(end["state"], end["value"]) for end in ends] == [("returned", 0), ("returned", 1)]


def _check_looks_for_memory() -> bool:
    """As on a busy machine: the check waits until nothing holds a tensor any more."""
    memory._looks_left = 700
    tensor = torch.ones(3)
    return memory.is_kept(StorageWeakRef(tensor.untyped_storage()))


def test_ranks_in_which_a_check_waits_for_memory_do_not_stand_still():
    ends = run_to_the_ends(_check_looks_for_memory, ranks=2)
    assert [(end["state"], end["value"]) for end in ends] == [("returned", True), ("returned", True)]


def _last_look_is_slow() -> int:
    """Rank 1 returns last, while its watcher is still writing down that it runs."""
    look = Watch._look

    def slow(watcher: Watch) -> dict:
        found = look(watcher)
        if found["state"] == "runs":
            watcher.over.wait(1)
        return found

    if dist.get_rank() == 1:
        Watch._look = slow
        time.sleep(0.3)
    return dist.get_rank()


def test_a_watchers_last_look_does_not_hide_that_its_rank_has_returned():
    ends = run_to_the_ends(_last_look_is_slow, ranks=3, timeout=60)
    assert [(end["state"], end["value"]) for end in ends] == [("returned", 0), ("returned", 1), ("returned", 2)]


def test_a_rank_that_leaves_is_named_and_so_is_the_one_that_waits_for_it():
    ends = run_to_the_ends(_one_leaves, ranks=2)
    assert [end["state"] for end in ends] == ["waits", "returned"]
    assert re.fullmatch(r"rank 0 waits in barrier.*, and rank 1 has returned", who_waits(ends))


def test_an_exception_on_one_rank_comes_before_the_waiting_of_the_others():
    def fails():
        if dist.get_rank() == 1:
            raise OSError("no space")

    ends = run_to_the_ends(_one_raises, Answer.of(fails, "fails"), ranks=2)
    assert ends[1]["state"] == "raised" and "fails raised OSError: no space" in ends[1]["text"]
    assert "1     has raised an exception" in table(ends)


def test_a_process_that_dies_is_named_by_the_answer():
    def dies():
        os.abort()

    with pytest.raises(Wrong, match=r"^dies ended its process on rank \d \(killed by SIGABRT\)"):
        run_to_the_ends(_one_raises, Answer.of(dies, "dies"), ranks=2)


# ---------------------------------------------------------------------- what is no stand-still
def _sleeps_in_a_thread() -> None:
    done = threading.Lock()
    done.acquire()
    threading.Thread(target=lambda: (time.sleep(LONG), done.release())).start()
    done.acquire()


def _works_on_and_off() -> None:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        time.sleep(0.02)


LONG = 1.5  # seconds: half of the patience of these tests with who is in no collective
SLOW = {
    "sleeps": lambda: time.sleep(LONG),
    "waits for a program": lambda: subprocess.run([sys.executable, "-c", f"import time; time.sleep({LONG})"]),
    "waits for a moment": lambda: threading.Event().wait(LONG),
    "tries to get a lock for a while": lambda: (lock := threading.Lock()).acquire() and lock.acquire(timeout=LONG),
    "listens to a socket for a while": lambda: select.select([socket.socketpair()[0]], [], [], LONG),
    "has a thread that sleeps": _sleeps_in_a_thread,
    "asks a clock again and again": _works_on_and_off,
}


def _impatient() -> None:
    standstill.STILL, standstill.STILL_ELSEWHERE = 4, 30


def _slow_ways() -> int:
    """Rank 0 waits in a barrier while rank 1 is slow, in each way."""
    _impatient()
    for way in SLOW.values():
        dist.barrier()
        if dist.get_rank() == 1:
            way()
        dist.barrier()
    return len(SLOW)


def test_no_way_to_be_slow_is_taken_for_a_stand_still():
    assert [end.get("value") or end for end in run_to_the_ends(_slow_ways, ranks=2, timeout=60)] == [len(SLOW)] * 2


def _sends_late() -> float:
    """Rank 1 has come to its end, and a thread of its sends what rank 0 waits for."""
    _impatient()
    tensor = torch.full((1,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)
    else:
        threading.Thread(target=lambda: (time.sleep(LONG), dist.send(tensor, 0))).start()
    return tensor.item()


def test_a_thread_of_a_rank_that_has_ended_is_waited_for():
    assert run(_sends_late, ranks=2, timeout=30) == [1.0, 1.0]


# ---------------------------------------------------------------------- what is one
def _ring() -> None:
    dist.recv(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())


def _work() -> None:
    if dist.get_rank() == 0:
        dist.irecv(torch.ones(1), 1).wait()


def _group() -> None:
    if dist.get_rank() == 0:
        dist.new_group([0, 1])


def _store() -> None:
    if dist.get_rank() == 0:
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).get("nobody sets it")


def _lock() -> None:
    if dist.get_rank() == 0:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (_ring, "Ranks 0, 1 wait in recv (line "),
        (_work, "Rank 0 waits (line "),
        (_group, "Rank 0 waits in new_group (line "),
        (_store, "Rank 0 waits (line "),
        (_lock, "Rank 0 waits (line "),
    ],
)
def test_ranks_that_wait_for_ever_are_ended_and_named(program, words):
    def probe():
        _impatient()
        program()

    with pytest.raises(StoodStill) as caught:
        run(probe, ranks=2, timeout=60)
    assert "was not finished: does a rank wait for another that never comes? " + words in caught.value.sentence
    assert caught.value.ends[0]["state"] == "waits" and "waits" in caught.value.details
