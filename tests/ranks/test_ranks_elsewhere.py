"""Ranks where Linux's own calls are missing. A stand-in for macOS: this Linux, in processes that lack what a Mac lacks.

What it cannot stand in for: macOS's own sockets, loopback interface (lo0) and Objective-C. For those CI has a Mac.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from utils.ranks.lifetimes import ended_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it stands in for another system on Linux")

ROOT = Path(__file__).parents[2]
# Every Python begins with it. (First what Python itself would look for in a Mac's library.)
LIKE_A_MAC = """
import multiprocessing, os, subprocess, sys, sysconfig, time, urllib.request
import psutil
sysconfig.get_config_vars()
sys.platform = "darwin"
for module, names in (
    (os, "memfd_create waitid SCHED_BATCH sched_setscheduler sched_getaffinity"), (time, "pthread_getcpuclockid")
):
    for name in names.split():
        delattr(module, name)
"""
PROGRAM = r"""
import os, tempfile
from utils.ranks import RankError, World
from utils.ranks.starters import default_method

assert default_method() == "spawn"
with World(2) as world:
    assert world.run_cell("import sys; sys.platform") == dict.fromkeys((0, 1), "'darwin'")
    assert world.run_cell("x = torch.tensor(rank + 1); dist.all_reduce(x); x.item()") == {0: "3", 1: "3"}
    first = world.pids
    try:
        world.run_cell("while rank == 1: pass\ndist.barrier()", timeout=1)
    except RankError as error:
        assert "did not end within 1 s" in str(error), error
    assert world.run_cell("rank") == {0: "0", 1: "1"}
    try:
        world.run_cell("import os\nif rank == 1: os._exit(3)\ndist.barrier()")
    except RankError as error:
        assert "exit code 3" in str(error), error
    ranks = {*first, *world.pids}
assert not [pid for pid in ranks if os.path.exists(f"/proc/{pid}")]
print("left:", *os.listdir(tempfile.gettempdir()))
"""


@pytest.mark.extras
def test_ranks_work_fail_and_leave_nothing_without_what_only_linux_has(tmp_path):
    for folder in ("mac", "tmp"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mac" / "sitecustomize.py").write_text(LIKE_A_MAC)
    there = {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": f"{tmp_path / 'mac'}:{ROOT}", "GLOO_SOCKET_IFNAME": "lo"}
    kept = {name: value for name, value in os.environ.items() if name != "RANKS_START"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=kept | there, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout, done.returncode) == ("left:\n", 0), done.stdout + done.stderr


@pytest.mark.parametrize("system", ["has waitid", "has none"])
def test_a_child_is_known_to_have_ended_until_somebody_has_waited_for_it(monkeypatch, system):
    """(Macs have it from Python 3.13 on.)"""
    if system == "has none":
        monkeypatch.delattr(os, "waitid")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert ended_child(child.pid) == 0
        child.stdin.close()
        while not ended_child(child.pid):
            pass
        assert ended_child(child.pid) == child.pid
    with pytest.raises(ChildProcessError):
        ended_child(child.pid)
