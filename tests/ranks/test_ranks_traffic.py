"""Nothing hangs, whatever is in flight between the notebook and its ranks."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time

import pytest
from ranks_support import Recorder

from utils.ranks import RankError, RankTimeout, World
from utils.ranks.wire import Channel, pair, wait_for

FLOOD = "import subprocess; flood = subprocess.Popen('sleep 0.5; yes | head -c 8000000', shell=True)"


@pytest.fixture
def interrupted_after():
    """Sends this process one SIGINT, so many seconds later; none once the test is over."""
    timers = []

    def start(seconds):
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()

    yield start
    for timer in timers:
        timer.cancel()
        timer.join()


@pytest.fixture(params=["fork", "spawn"])
def start(request):
    return request.param


def test_two_channels_that_both_send_a_lot_never_wait_for_each_other():
    one, socket = pair()
    other, much = Channel(socket), b"x" * 5_000_000
    received = []
    one.send({"n": 1}, much)
    other.send({"n": 2}, much)
    while len(received) < 2:
        for channel in wait_for([one, other], 5):
            received += channel.take()
    assert sorted((message["n"], len(blob)) for message, blob in received) == [(1, len(much)), (2, len(much))]
    assert one.pending == other.pending == 0
    one.close(), other.close()


def test_a_long_message_that_comes_in_pieces_is_whole_and_so_is_the_next():
    channel, socket = pair()
    with channel.sock, socket:
        sent = Channel(socket)
        long = os.urandom(3_000_000)
        sent.send({"number": 1}, b"short", more=True)
        sent.send({"number": 2}, long, more=True)
        sent.send({"number": 3})
        found = []
        while len(found) < 3:
            sent.write()
            found += channel.take()
        assert [(message["number"], bytes(blob)) for message, blob in found] == [(1, b"short"), (2, long), (3, b"")]


@pytest.mark.parametrize("length, text", [(2**64 - 1, b"{}"), (0, b"x}")], ids=["no such length", "no JSON"])
def test_a_sender_gone_mad_is_taken_for_gone(length, text):
    channel, socket = pair()
    with channel.sock, socket:
        socket.sendall(struct.pack("!IQ", len(text), length) + text)
        assert channel.take() == [] and channel.eof


def test_a_large_push_meets_a_flood_of_output(start):
    with World(2, start=start) as world:
        world.run_cell(FLOOD)
        time.sleep(1.5)  # the flood has filled what there is between the rank and the notebook
        world.push("x", b"a" * 20_000_000)
        assert world.run_cell("len(x)") == {0: "20000000", 1: "20000000"}


def test_a_flood_while_nobody_reads_neither_fills_memory_nor_stops_the_next_cell():
    with World(1) as world:
        world.run_cell("import subprocess; flood = subprocess.Popen('yes', shell=True)")
        time.sleep(1)
        source = "import psutil; flood.terminate(); psutil.Process().memory_info().rss"
        assert int(world.run_cell(source)[0]) < 1 << 30


def test_a_push_to_a_stopped_rank_ends_at_an_interrupt(interrupted_after):
    with World(2) as world:
        os.kill(world.pids[1], signal.SIGSTOP)
        interrupted_after(1)
        with pytest.raises(KeyboardInterrupt):
            world.push("x", b"a" * 20_000_000)


def test_a_flood_that_never_ends_can_be_timed_out(start):
    with World(2, start=start) as world:
        with pytest.raises(RankTimeout):
            world.run_cell("import subprocess\nflood = subprocess.Popen('yes')\nflood.wait()", timeout=1)
        with pytest.raises(RankError, match="ZeroDivisionError"):
            world.run_cell("flood.kill(); 1 / 0")


def test_a_thread_that_prints_for_ever_does_not_keep_a_cell_from_ending():
    with World(1) as world:
        source = "import threading\nend = False\ndef chatter():\n    while not end: print('x' * 1000)\n"
        world.run_cell(source + "threading.Thread(target=chatter).start()", timeout=30)
        assert world.run_cell("end = True; 7") == {0: "7"}


def test_a_letter_in_two_pieces_is_one_letter():
    view = Recorder()
    with World(1) as world:
        source = "import os, time\nos.write(1, b'na\\xc3')\ntime.sleep(0.3)\nos.write(1, b'\\xafve\\n');"
        world.run_cell(source, view=view)
    assert view.text() == "rank 0: naïve\n"


def test_programs_that_a_cell_starts_inherit_no_connection_of_the_rank(start):
    with World(1, start=start) as world:
        inherited = "import subprocess; subprocess.run(['ls', '/proc/self/fd'], capture_output=True, text=True)"
        found = eval(world.run_cell(f"{inherited}.stdout.split()")[0])
        assert set(found) <= {"0", "1", "2", "3"}, "0 to 2, and that of ls itself"
        inherited = "import os; os.popen('ls /proc/self/fd').read().split()"
        assert len(eval(world.run_cell(inherited)[0])) <= 4
