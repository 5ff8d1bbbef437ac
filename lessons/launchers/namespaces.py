"""Several hosts on one machine: each with a name, an address and a network card of its own.

    with namespaces.hosts(2) as hosts:
        print(hosts[0].name, hosts[0].address)
        hosts[1].slow_down("100mbit")
        print(torchrun.run_agents("scripts/who_am_i.py", hosts=hosts))

A host is a set of Linux namespaces: for the network (its own cards, addresses, ports and loopback), for the host
name, and for mounts (its own /etc/hosts, so that the names of all hosts resolve). A virtual cable (veth) leads from
its card ``eth0`` to a virtual switch (bridge). There is no way from there to the internet or to the machine itself.
Processors, memory, disk and the list of processes are shared.

It needs Linux, the programs of util-linux and iproute2, and root or a system that allows user namespaces. These
namespaces have no names, so nothing collides and nothing stays: when the block ends, and also when the process that
began it dies, whatever runs on the hosts is killed, and the kernel then removes namespaces and cables.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

import psutil

from lessons.launchers import processes
from utils.ranks.failures import how_it_ended

_PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2", "mount": "mount"}
_NAMESPACES = ("--net", "--uts", "--mount")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SMALLEST_BURST = 32_768  # bytes
MOST_HOSTS = 200


class HostError(RuntimeError):
    """A host cannot be made, or a command on it failed: one sentence, then the command's last lines."""


class Host:
    """One host; made by ``hosts()``.

    Attributes:
        name: its host name, "host0".
        address: its IPv4 address, "10.77.0.1"; the other hosts reach it there, or by its name.
        environment: variables that lead gloo and NCCL to its network card.
    """

    environment: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}

    def __init__(self, number: int, keeper: _Keeper, switch: _Keeper) -> None:
        self.name, self.address = f"host{number}", f"10.77.0.{number + 1}"
        self._port = f"port{number}"
        self._keeper, self._switch = keeper, switch

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` on this host, in the current folder. The process keeps its pid."""
        there = ("sh", "-c", 'cd "$0" && exec "$@"', os.getcwd())
        return [*self._keeper.enter(*_NAMESPACES), *there, *command]

    def slow_down(self, rate: str) -> None:
        """Slow its network card down, in both directions; what goes on inside the host keeps its speed.

        A token bucket (``tc … tbf``): a millisecond's worth of bytes may pass at once, the rest waits for its turn.

        Args:
            rate: bits per second in tc's words: "100mbit", "2.5gbit", "800kbit".
        """
        match = _RATE.fullmatch(rate)
        if not match or not float(match[1]):
            raise ValueError(f'a rate is a number and kbit, mbit or gbit, as in "100mbit", not {rate!r}')
        burst = max(_SMALLEST_BURST, round(float(match[1]) * _BITS[match[2]] / 8 / 1000))
        bucket = f"root tbf rate {rate} burst {burst} latency 400ms"
        self._keeper.do(f"tc qdisc replace dev eth0 {bucket}")
        self._switch.do(f"tc qdisc replace dev {self._port} {bucket}")

    def cut_off(self) -> None:
        """Pull its cable out of the switch. Connections stay open and hear nothing: nobody is told."""
        self._switch.do(f"ip link set {self._port} down")

    def hosts_file(self, text: str) -> None:
        """Give it another /etc/hosts, for all that is started there from now on."""
        with tempfile.NamedTemporaryFile("w", prefix="hosts-") as file:  # (where it is mounted it stays)
            file.write(text)
            file.flush()
            self._keeper.do(f"umount /etc/hosts; mount --bind {file.name} /etc/hosts")


@contextlib.contextmanager
def private_network() -> Iterator[Callable[[Sequence[str]], list[str]]]:
    """What leads commands to a host of their own, which nobody else can reach; nothing, where there can be none."""
    with contextlib.ExitStack() as stack:
        yield list if why_not() else stack.enter_context(hosts(1))[0].inside


@contextlib.contextmanager
def hosts(count: int = 2) -> Iterator[list[Host]]:
    """Make hosts, connected by a switch; they are gone when the block ends.

    Args:
        count: how many.

    Raises:
        HostError: it cannot be done here; the sentence of ``why_not()``.
    """
    if not 1 <= count <= MOST_HOSTS:
        raise ValueError(f"1 to {MOST_HOSTS} hosts, not {count}")
    if reason := why_not():
        raise HostError(reason)
    with contextlib.ExitStack() as stack:
        switch = _Keeper(stack)
        switch.do("ip link add switch type bridge && ip link set switch up")
        made = [Host(number, _Keeper(stack, inside=switch), switch) for number in range(count)]
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in made)]
        for host in made:
            cable = f"{host._port} netns {switch.pid} type veth peer name eth0 netns {host._keeper.pid}"
            switch.do(f"ip link add {cable} && ip link set {host._port} master switch up")
            card = f"ip link set eth0 addrgenmode none && ip address add {host.address}/24 dev eth0"  # (no IPv6)
            host._keeper.do(f"{card} && ip link set eth0 up && ip link set lo up && hostname {host.name}")
            host.hosts_file("\n".join(lines) + "\n")
        yield made


class _Keeper:
    """A process that keeps namespaces alive. When it ends, it kills all that runs in them."""

    def __init__(self, stack: contextlib.ExitStack, inside: _Keeper | None = None) -> None:
        self._as_root = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
        new_user = ("--user", "--map-root-user") if self._as_root and inside is None else ()
        before = inside.enter() if inside and self._as_root else ()  # all in one user namespace
        keep = [sys.executable, "-m", "lessons.launchers.namespaces"]
        command = [*before, "unshare", *_NAMESPACES, *new_user, *keep]
        process = stack.enter_context(processes.helper(command, processes.clean_environment()))
        assert process.stdout is not None
        self.pid = process.pid
        if not process.stdout.readline():
            raise HostError(f"no new namespaces: unshare {how_it_ended(process.wait(), in_sentence=True)}")

    def enter(self, *namespaces: str) -> list[str]:
        """The beginning of a command line whose rest then runs in these namespaces, each an option of nsenter."""
        return ["nsenter", "--target", str(self.pid), *self._as_root, *namespaces, "--"]

    def do(self, script: str) -> None:
        """Let the shell do it in there."""
        command = [*self.enter(*_NAMESPACES), "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise HostError(f"{script} failed: {done.stderr.strip()}")


def why_not() -> str | None:
    """One sentence why there can be no hosts here; None if there can."""
    if sys.platform != "linux":
        return "hosts on one machine need Linux: its network namespaces"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"hosts on one machine need the program {program}: apt-get install {package}"
    new_user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    cable = "ip link add switch type bridge && ip link add one type veth peer name two"
    slow = "tc qdisc add dev one root tbf rate 1mbit burst 32kbit latency 10ms"
    mounts = "hostname host0 && mount --bind /etc/hosts /etc/hosts"
    trial = ["unshare", *_NAMESPACES, *new_user, "sh", "-c", f"{cable} && {slow} && {mounts}"]
    tried = subprocess.run(trial, capture_output=True, text=True, timeout=30)
    if tried.returncode:
        who = "" if os.geteuid() == 0 else ", and you are not root"
        return f"this system does not let a program make network namespaces{who} ({tried.stderr.strip()})"
    return None


def _keep() -> None:
    """Say that the namespaces are there; wait for the end of the starter or of the block; kill all that is in them."""
    print("ready", flush=True)
    sys.stdin.read()
    here = os.readlink("/proc/self/ns/net")

    def inside() -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if process.pid != os.getpid() and os.readlink(f"/proc/{process.pid}/ns/net") == here:
                    yield process

    processes.kill_all(lambda: list(inside()))


if __name__ == "__main__":
    _keep()
