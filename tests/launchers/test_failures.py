"""Programs of scripts/failures fail in the way that their lecture says, and the tools that look at them say so.

Most of them run in the lecture itself, where nbval compares how they end; here are the others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from course import outline
from lessons.launchers import torchrun
from lessons.launchers.failures import diagnose, isolation
from lessons.launchers.failures.diagnose import Case

ROOT = Path(__file__).resolve().parents[2]
FAILURES = ROOT / "scripts" / "failures"


# ---------------------------------------------------------------------- what nbval does not compare
def test_the_slow_rank_waits_the_least():
    output = diagnose.run(FAILURES / "straggler.py", ranks=4)[0].output
    assert output.endswith("waits the least: 2\n")


def test_restarted_ranks_read_keys_of_dead_ones_unless_the_attempt_is_in_front():
    program = FAILURES / "restarted.py"
    store = diagnose._new_store()
    assert {end.how for end in diagnose.run(program, ranks=8, store=store).ranks} == {"finished"}
    late, *others = diagnose.run(program, "--late", ranks=8, store=store, until=(0,)).ranks
    refused = [end for end in others if "Connection refused" in end.words]
    assert late.words == (
        "ended by torchrun, because another rank has failed"
        if refused
        else "nobody has failed: all others wait to be called by the dead"
    )
    assert {end.how for end in others if end not in refused} <= {"still running"}, "whoever does not call hangs"
    store.delete_key("gave up")
    again = diagnose.run(program, "--late", "--prefix", ranks=8, store=store)
    assert {end.how for end in again.ranks} == {"finished"}


@pytest.mark.skipif(isolation.why_no_files() is not None, reason=str(isolation.why_no_files()))
def test_names_that_do_not_resolve_and_the_cure_by_a_hosts_file():
    node, program = {"MASTER_ADDR": "node-a"}, FAILURES / "rendezvous.py"
    no_answer = {"/etc/resolv.conf": "nameserver 127.0.0.1\n", "/etc/hosts": "127.0.0.1 localhost\n"}
    cases = [
        Case(program, ("1",), 1, env=node, files=no_answer),
        Case(program, ("1",), 1, env=node, files={"/etc/nsswitch.conf": "hosts: files\n"}),
        Case(program, env=node, files=no_answer | {"/etc/hosts": "127.0.0.1 localhost node-a\n"}),
    ]
    before = Path("/etc/hosts").read_text()
    not_asked, not_known, cured = diagnose.run_all(cases)
    assert "gai error: -3" in not_asked[0].log[0] and "gai error" not in not_asked[0].words
    assert "gai error: -2" in not_known[0].log[0]
    assert [end.how for end in cured.ranks] == ["finished", "finished"]
    assert Path("/etc/hosts").read_text() == before


@pytest.mark.skipif(isolation.why_no_limit() is not None, reason=str(isolation.why_no_limit()))
def test_a_rank_without_memory_is_killed_without_a_word():
    try:
        waiting, killed = diagnose.run(FAILURES / "out_of_memory.py", memory=(1, 200_000_000)).ranks
    finally:
        isolation.remove_groups()
    assert (killed.how, killed.words, killed.log) == ("killed by SIGKILL", "", ())
    assert "by peer" in waiting.words  # closed, or reset, whichever gloo sees first
    assert not list(Path("/sys/fs/cgroup").glob("**/course-*"))


# ---------------------------------------------------------------------- under the real torchrun
def test_under_torchrun_the_same_program_fails_alike_and_the_waiting_rank_is_called_the_root_cause():
    with pytest.raises(torchrun.AgentsFailed) as caught:
        torchrun.run_agents(FAILURES / "never_arrives.py", nodes=1, per_node=2)
    log = caught.value.run.agents[0].log
    assert "[0]:" in log.partition("Root Cause")[2]
    assert "wait timeout after 3000ms, keys: /default_pg/0//cpu//0/1" in caught.value.run.workers[0].errors


@pytest.mark.parametrize("options", [(), ("--record",)], ids=["plain", "recorded"])
def test_torchruns_report_has_the_exception_of_a_rank_that_records_it(options):
    with pytest.raises(torchrun.AgentsFailed) as caught:
        torchrun.run_agents(FAILURES / "raises.py", *options, nodes=1, per_node=2)
    root_cause = caught.value.run.agents[0].log.partition("Root Cause")[2]
    assert "rank      : 1" in root_cause
    assert ("ValueError: a learning rate of -1" in root_cause) == bool(options)


def test_a_restart_starts_all_ranks_anew():
    run = torchrun.run_agents(FAILURES / "dies_once.py", nodes=1, per_node=2, max_restarts=1)
    assert [worker.output.splitlines()[-1] for worker in run.workers] == [
        "attempt 1: rank 0 is done",
        "attempt 1: rank 1 is done",
    ]
    assert [worker.output for worker in run.agents[0].earlier] == [
        f"attempt 0: rank {rank} is here\n" for rank in (0, 1)
    ]


def test_spawn_ends_the_others_and_starts_nobody_again():
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts" / "spawned.py"], capture_output=True, text=True, timeout=240
    )
    assert ended.stderr.splitlines()[-1].endswith("ProcessExitedException: process 1 terminated with signal SIGKILL")
    assert (ended.stdout.count("is here"), ended.stdout.count("is done")) == (2, 0)


def test_ddp_under_detail_dies_as_the_lecture_says():
    ends = [diagnose.run(FAILURES / "ddp_detail.py", ranks=1, env={"TORCH_DISTRIBUTED_DEBUG": level})[0].how
            for level in ("INFO", "DETAIL")]  # fmt: skip
    assert ends == ["finished", "killed by SIGSEGV"]


# ---------------------------------------------------------------------- the tools
def test_every_program_is_run_by_the_lecture_or_a_test():
    run = Path(__file__).read_text() + outline.notebook("failures_and_hangs").read_text()
    assert [file.name for file in FAILURES.glob("*.py") if file.stem not in run] == []


def test_programs_find_what_torchrun_gives_them_and_end_as_they_like(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time\n"
        "print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'GROUP_RANK')), sys.argv[1], flush=True)\n"
        "if os.environ['RANK'] == '0': sys.exit(3)\n"
        "if os.environ['RANK'] == '1': os.fork() or os._exit(7); os._exit(os.wait()[1] - (7 << 8))\n"
        "if os.environ['RANK'] == '2': 1 / 0\n"
        "time.sleep(100)\n"
    )
    ended = diagnose.run(program, "x", ranks=4, nodes=2, until=(0, 1, 2))
    assert [end.output for end in ended.ranks] == ["0 4 0 0 x\n", "1 4 1 0 x\n", "2 4 0 1 x\n", "3 4 1 1 x\n"]
    how = [end.how for end in ended.ranks]
    assert how == ["ended with exit code 3", "finished", "ZeroDivisionError", "still running"]
    assert ended[3].code == "time.sleep(100)"
    assert (ended[2].line, ended[2].code) == (5, "if os.environ['RANK'] == '2': 1 / 0")
