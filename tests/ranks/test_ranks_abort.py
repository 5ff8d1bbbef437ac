"""A collective that is stuck is ended, and no more: connections to others stay, nobody goes on with garbage."""

from __future__ import annotations

import socket
import threading

import pytest

from utils.ranks import RankError, RankTimeout, World, starters

STUCK = "if rank == 0: dist.barrier()\nelse:\n    import time; time.sleep(1000)"


@pytest.fixture
def database():
    """A server in this process that answers every line with the same line; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client):
        with client, client.makefile("rwb", 0) as lines:
            for line in lines:
                lines.write(line)

    def accept():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def fails(world, source, error=RankTimeout, **options):
    with pytest.raises(error) as caught:
        world.run_cell(source, **options)
    return caught.value


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_connection_to_somebody_else_survives_a_hang(start, database):
    """Python's own, and one that C code has made, as database drivers do."""
    ask = "python.sendall(b'one\\n'); os.write(fd, b'two\\n'); (python.recv(10), os.read(fd, 10))"
    with World(2, start=start) as world:
        world.run_cell(
            f"import os, socket\npython = socket.create_connection(('127.0.0.1', {database}))\n"
            f"fd = socket.create_connection(('127.0.0.1', {database})).detach()"
        )
        assert world.run_cell(ask) == dict.fromkeys((0, 1), r"(b'one\n', b'two\n')")
        fails(world, STUCK, timeout=1)
        assert world.run_cell(ask) == dict.fromkeys((0, 1), r"(b'one\n', b'two\n')")
        assert world.run_cell("x = torch.ones(1); dist.all_reduce(x); x.item()") == {0: "2.0", 1: "2.0"}


def test_a_connection_between_ranks_that_python_holds_survives_too():
    with World(2) as world:
        world.run_cell(
            "import socket\nport = torch.zeros(1)\nif rank == 0:\n    server = socket.create_server(('127.0.0.1', 0))\n"
            "    port += server.getsockname()[1]\ndist.all_reduce(port)\n"
            "mine = server.accept()[0] if rank == 0 else socket.create_connection(('127.0.0.1', int(port)))"
        )
        fails(world, STUCK, timeout=1)
        world.run_cell("mine.sendall(b'still here')")
        assert world.run_cell("mine.recv(10)") == dict.fromkeys((0, 1), "b'still here'")


def test_a_wait_in_a_store_ends_too():
    """It has the port that MASTER_PORT names, or is held by a rank."""
    with World(2) as world:
        world.run_cell("kept = rank; store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)")
        source = "if rank == 1: client = dist.TCPStore('127.0.0.1', port, is_master=False); client.wait(['never'])"
        share = "port = torch.tensor([store.port]); dist.broadcast(port, 0); port = int(port)\n"
        fails(world, share + source, timeout=1)
        assert world.run_cell("kept") == {0: "0", 1: "1"}


def test_who_is_freed_by_an_abort_does_not_go_on_with_garbage():
    """As under NCCL, where a wait returns without an error once its communicator is aborted."""
    source = (
        "import ctypes\nfrom utils.ranks import connections\n"
        "libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
        "def abort(pids): libc.pthread_mutex_unlock(lock)\n"
        "connections.abort_communication = abort\nwent_on = False\n"
    )
    wait = (
        "if rank == 0: raise ValueError('boom')\n"
        "libc.pthread_mutex_lock(lock); libc.pthread_mutex_lock(lock)\nwent_on = True"
    )
    with World(2) as world:
        world.run_cell(source)
        error = fails(world, wait, RankError)
        assert str(error) == "rank 0 failed: ValueError: boom"
        assert "rank 1 was" in error.report
        assert world.run_cell("went_on") == {0: "False", 1: "False"}


@pytest.fixture
def zygote_with_a_thread(tmp_path, monkeypatch):
    code = "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    (tmp_path / "usercustomize.py").write_text(code)
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    starters.shut_down()
    yield
    starters.shut_down()


def test_a_process_that_may_not_fork_any_more_does_not(zygote_with_a_thread):
    with World(2, start="fork") as world:
        assert "started as new processes" in world.note and "has 2 threads" in world.note
        assert world.run_cell("x = torch.ones(1); dist.all_reduce(x); x.item()") == {0: "2.0", 1: "2.0"}
        assert {starter.starter is starters.starter("spawn") for starter in world._processes.handles} == {True}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("dist.init_process_group('gloo', world_size=7)", "world_size=7.*here world_size is 2"),
        ("dist.init_process_group('gloo', rank=5)", "rank=5.*here rank is"),
        ("dist.init_process_group('gloo', 'env://', None, 7)", "world_size=7"),
    ],
)
def test_a_group_of_another_shape_is_refused(call, says):
    with World(2) as world:
        with pytest.raises(RankError, match=says):
            world.run_cell(call)
        assert world.run_cell("x = torch.ones(1); dist.all_reduce(x); x.item()") == {0: "2.0", 1: "2.0"}


def test_an_init_method_is_followed_also_without_its_name(tmp_path):
    with World(2) as world:
        call = f"dist.init_process_group('gloo', 'file://{tmp_path}/store', rank=1 - rank, world_size=2)"
        assert world.run_cell(f"{call}\ndist.get_rank()") == {0: "1", 1: "0"}
