"""Hosts on one machine: they have names and addresses of their own, can be slowed and cut off, and leave nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from lessons.launchers import namespaces, processes, torchrun

pytestmark = pytest.mark.extras  # real torchrun, job after job; the lecture on it runs some in every `make test`
ROOT = Path(__file__).resolve().parents[2]
LONG = 240.0  # seconds; a machine that does much else at the same time is slow

needs_hosts = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

# Answers each byte that comes with one byte; a first line tells the port.
ECHO = """
import socket
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        with server.accept()[0] as connection:
            while connection.recv(1): connection.sendall(b"k")
"""
# Sends so many bytes to the address, and reports how many seconds until the last of them was taken there.
SEND = """
import socket, sys, time
address, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with socket.create_connection((address, port)) as connection:
    start = time.perf_counter()
    connection.sendall(bytes(size))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(time.perf_counter() - start)
"""
TAKE_ALL = """
import socket
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        with server.accept()[0] as connection:
            while connection.recv(1_000_000): pass
"""
# Sends a byte for each line that comes in, and says what it hears: the answer, or "nothing" after some seconds.
TALK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    connection.settimeout(float(sys.argv[3]))
    for line in sys.stdin:
        connection.sendall(b"k")
        try: print("heard" if connection.recv(1) else "closed", flush=True)
        except TimeoutError: print("nothing", flush=True)
"""


@pytest.fixture(scope="module")
def hosts():
    with namespaces.hosts(2) as pair:
        yield pair


def popen(host: namespaces.Host, *command: str, **options: Any) -> subprocess.Popen[Any]:
    environment = processes.clean_environment() | host.environment
    return subprocess.Popen(host.inside(command), env=environment, start_new_session=True, **options)


def run(host: namespaces.Host, *command: str) -> str:
    """What a command prints on a host."""
    done = popen(host, *command, stdout=subprocess.PIPE, text=True)
    said, _ = done.communicate(timeout=LONG)
    assert done.returncode == 0, said
    return said


def serve(host: namespaces.Host, program: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server on a host. Returns the process and its port."""
    server = popen(host, sys.executable, "-c", program, stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


@needs_hosts
def test_hosts_have_names_and_addresses_of_their_own(hosts):
    assert [(host.name, host.address) for host in hosts] == [("host0", "10.77.0.1"), ("host1", "10.77.0.2")]
    for host, other in zip(hosts, reversed(hosts), strict=True):
        assert run(host, "hostname") == f"{host.name}\n"
        assert run(host, "getent", "hosts", other.name).split() == [other.address, other.name]
        assert re.findall(r"inet (\S+)", run(host, "ip", "-4", "address")) == ["127.0.0.1/8", f"{host.address}/24"]
    assert socket.gethostname() not in ("host0", "host1")
    assert "host1" not in Path("/etc/hosts").read_text()


@needs_hosts
def test_a_host_can_be_given_another_hosts_file_and_the_others_keep_theirs():
    asks = (sys.executable, "-c", "import socket; print(socket.gethostbyname('host0'))")
    with namespaces.hosts(2) as (one, other):
        one.hosts_file("127.0.1.1 host0\n")
        assert [run(host, *asks).strip() for host in (one, other)] == ["127.0.1.1", "10.77.0.1"]
        one.hosts_file("10.77.0.9 host0\n")  # a second time, too
        assert run(one, *asks).strip() == "10.77.0.9"


@needs_hosts
def test_a_slow_card_takes_as_long_as_its_rate_says_in_both_directions():
    size = 500_000
    with namespaces.hosts(2) as hosts:
        ports = [serve(host, TAKE_ALL)[1] for host in hosts]

        def seconds(sender: int, receiver: int, nbytes: int = size) -> float:
            words = (hosts[receiver].name, ports[receiver], str(nbytes))
            return float(run(hosts[sender], "python", "-c", SEND, *words))

        assert seconds(1, 0, 40 * size) < 20  # at 4 Mbit/s: 40 seconds
        hosts[1].slow_down("4mbit")  # half a megabyte takes a second, but for the first 32 kB that pass at once
        assert seconds(0, 1) > 0.8 and seconds(1, 0) > 0.8
        assert float(run(hosts[1], "python", "-c", SEND, "127.0.0.1", ports[1], str(size))) < 0.8


@needs_hosts
def test_a_host_that_is_cut_off_hears_nothing_and_no_error():
    def talk() -> str:
        talker.stdin.write("send\n")
        talker.stdin.flush()
        return talker.stdout.readline().strip()

    with namespaces.hosts(2) as hosts:
        _, port = serve(hosts[1], ECHO)
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        talker = popen(hosts[0], sys.executable, "-c", TALK, "host1", port, "1", **options)
        assert talk() == "heard"
        hosts[1].cut_off()
        assert talk() == "nothing"


@needs_hosts
def test_torchrun_agents_meet_across_hosts_static_and_c10d(hosts):
    for rendezvous in ("static", "c10d"):
        options = {"nodes": 2, "per_node": 1, "rendezvous": rendezvous, "timeout": LONG}
        run = torchrun.run_agents(ROOT / "scripts" / "who_am_i.py", hosts=hosts, **options)
        assert sorted(worker.rank for worker in run.workers) == [0, 1]
        assert all("of 2; the sum of all ranks is 1" in worker.output for worker in run.workers)


def alive(pids: list[int]) -> list[int]:
    """Those of these processes that are there and no zombies."""
    return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]


@needs_hosts
def test_nothing_of_the_hosts_stays(hosts):
    cards = sorted(os.listdir("/sys/class/net"))
    with namespaces.hosts(1) as (alone,):  # the same name and address as the other's first host
        assert sorted(os.listdir("/sys/class/net")) == cards
        lasting = popen(alone, "sh", "-c", "sleep 1000 & sleep 1000")
        pids = [alone._keeper.pid, alone._switch.pid, lasting.pid]
        assert run(alone, "ip", "-brief", "link").count("\n") == 2  # lo and eth0
    assert lasting.wait(LONG) == -signal.SIGKILL
    assert alive(pids) == []
    assert run(hosts[0], "hostname") == "host0\n"


@needs_hosts
def test_nothing_stays_when_the_notebook_itself_is_killed():
    program = (
        "import subprocess, time\nfrom lessons.launchers import namespaces\nwith namespaces.hosts(1) as (host,):\n"
        " slept = subprocess.Popen(host.inside(['sleep', '1000']), start_new_session=True)\n"
        " print(slept.pid, host._keeper.pid, host._switch.pid, flush=True)\n time.sleep(1000)"
    )
    notebook = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert notebook.stdout is not None
    pids = [int(word) for word in notebook.stdout.readline().split()]
    assert alive(pids) == pids
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.communicate()
    deadline = time.monotonic() + LONG
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def test_why_not_is_one_sentence_for_each_reason(monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "platform", "darwin")
        assert namespaces.why_not() == "hosts on one machine need Linux: its network namespaces"
        with pytest.raises(namespaces.HostError, match="need Linux"), namespaces.hosts(2):
            pass
    if sys.platform != "linux":
        return
    with monkeypatch.context() as bare:
        bare.setattr(shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
        assert namespaces.why_not() == "hosts on one machine need the program tc: apt-get install iproute2"
    refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: refused)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    sentence = "this system does not let a program make network namespaces, and you are not root"
    assert namespaces.why_not() == f"{sentence} (unshare: unshare failed: Operation not permitted)"
