"""Each program of scripts/failures fails in the way that its lecture says, and the tools that look at it say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lessons.launchers import torchrun
from lessons.launchers.failures import diagnose, isolation
from lessons.launchers.failures.diagnose import Case, Endings
from lessons.launchers.torchrun import elastic

ROOT = Path(__file__).resolve().parents[2]
FAILURES = ROOT / "scripts" / "failures"
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
NOBODY = {"MASTER_ADDR": "192.0.2.1"}  # reserved for documentation (RFC 5737)
TIMED_OUT = (
    "Timed out waiting",
    "Connection closed by peer",
)  # the first one whose time is over closes its connections

# Programs that the tests below run, each in one of them.
CASES = {
    "never_arrives": Case(FAILURES / "never_arrives.py"),
    "one_barrier": Case(FAILURES / "one_barrier.py"),
    "missing": Case(FAILURES / "missing.py", ranks=4),
    "mismatched": Case(FAILURES / "mismatched.py"),
    "mismatched in DETAIL": Case(FAILURES / "mismatched.py", env=DETAIL),
    "silent_mismatch": Case(FAILURES / "silent_mismatch.py"),
    "silent_mismatch in DETAIL": Case(FAILURES / "silent_mismatch.py", env=DETAIL),
    "uneven_steps": Case(FAILURES / "uneven_steps.py", history=True),
    "uneven_steps with barriers": Case(FAILURES / "uneven_steps.py", ("--barriers",), history=True),
    "stuck": Case(FAILURES / "stuck.py"),
    "port_in_use": Case(FAILURES / "port_in_use.py", ranks=1),
    "wrong address": Case(FAILURES / "rendezvous.py", ("1",), ranks=1, env=NOBODY),
    "different_settings": Case(
        FAILURES / "different_settings.py", nodes=2, env=[{"LEARNING_RATE": "0.5"}, {"LEARNING_RATE": "0.25"}]
    ),
}


@pytest.fixture(scope="module")
def ended() -> dict[str, Endings]:
    return dict(zip(CASES, diagnose.run_all(list(CASES.values())), strict=True))


def where(end: diagnose.Ending) -> tuple[str, str]:
    return end.how, end.code


# ---------------------------------------------------------------------- programs that need no launcher of their own
def test_a_rank_that_never_arrives_is_named_by_the_key_of_the_one_that_waits(ended):
    first, second = ended["never_arrives"].ranks
    assert first.how == "DistStoreError"
    assert first.words == "wait timeout after 3000ms, keys: /default_pg/0//cpu//0/1"
    assert (second.how, second.words) == ("ended with exit code 1", "no space left on this node")


def test_a_barrier_on_one_rank_only_leaves_both_waiting_in_different_lines(ended):
    first, second = ended["one_barrier"].ranks
    assert where(first) == ("RuntimeError", "dist.barrier()")
    assert second.code.startswith("dist.monitored_barrier()")
    assert first.words.startswith(TIMED_OUT)
    assert "Please check rank 0 logs" in second.words
    assert "rank 0 printed: saved the model" in repr(ended["one_barrier"])


def test_monitored_barrier_names_the_missing_rank(ended):
    assert ended["missing"][0].words == "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 2000 ms"
    assert ended["missing"][2].how == "finished"


def test_mismatched_collectives_time_out_and_detail_names_both(ended):
    assert [end.code for end in ended["mismatched"].ranks] == ["dist.all_reduce(loss)", "dist.broadcast(loss, src=0)"]
    assert all(end.words.startswith(TIMED_OUT) for end in ended["mismatched"].ranks)
    detail = ended["mismatched in DETAIL"]
    assert detail[0].words.startswith("Detected mismatch between collectives on ranks. Rank 0 is running collective: ")
    assert detail[0].words.endswith("Op type: ALLREDUCE vs BROADCAST")
    assert "TensorOptions" not in detail[0].words


def test_types_that_differ_give_nonsense_without_an_error(ended):
    assert [(end.how, end.output) for end in ended["silent_mismatch"].ranks] == [
        ("finished", "[1.0, 1.0]\n"),
        ("finished", "[1065353216, 1065353216]\n"),
    ]
    assert "dtypes: Float vs Int" in ended["silent_mismatch in DETAIL"][0].words


def test_uneven_steps_mix_a_gradient_into_the_accuracy_and_the_flight_recorder_shows_where(ended):
    uneven = ended["uneven_steps"]
    assert where(uneven[0]) == ("RuntimeError", "dist.all_reduce(accuracy, dist.ReduceOp.AVG)")
    assert (uneven[1].how, uneven[1].output) == ("finished", "accuracy: 4.5\n")
    rows = uneven.flight_recorder().splitlines()
    differ = [row for row in rows if "they differ" in row]
    assert rows[5] == differ[0] == " 5  line 17: all_reduce  line 20: all_reduce   ← they differ"
    assert len(rows) == 7  # ranks; five steps and the accuracy


def test_barriers_do_not_cure_it(ended):
    barriers = ended["uneven_steps with barriers"]
    assert [end.code for end in barriers.ranks] == ["dist.barrier()", "dist.all_reduce(accuracy, dist.ReduceOp.AVG)"]
    assert "line 16: barrier     line 20: all_reduce   ← they differ" in barriers.flight_recorder()


def test_both_ways_to_write_down_a_stack_give_the_line(ended):
    busy, waiting = ("\n".join(end.log) for end in ended["stuck"].ranks)
    assert 'stuck.py", line 19' in busy and "Timeout" in busy
    assert "in barrier" in waiting and 'stuck.py", line 23' in waiting


def test_a_port_that_is_taken_and_an_address_where_nobody_is(ended):
    assert "name: EADDRINUSE" in ended["port_in_use"][0].words
    words = "The client socket has timed out after 1000ms while trying to connect to (192.0.2.1, PORT)."
    assert ended["wrong address"][0].words == words


def test_settings_that_differ_are_no_error(ended):
    outputs = [(end.how, end.output) for end in ended["different_settings"].ranks]
    assert outputs == [("finished", "weight: 3.0234\n"), ("finished", "weight: 1.5117\n")]


def test_ddp_dies_with_detail_and_not_without():
    program = FAILURES / "ddp_detail.py"
    assert diagnose.run(program, ranks=1)[0].how == "finished"
    assert diagnose.run(program, ranks=1, env=DETAIL)[0].how == "killed by SIGSEGV"


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
    assert waiting.words.startswith("Connection closed by peer [127.0.0.1]:PORT")
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


def test_a_process_can_abort_after_its_work_is_done():
    with pytest.raises(torchrun.AgentsFailed, match=r"rank 0 .* was killed by SIGABRT") as caught:
        torchrun.run_agents(FAILURES / "abort_at_exit.py", nodes=1, per_node=2)
    assert caught.value.run.workers[0].output == "the model is saved\n"


def test_a_package_that_one_node_lacks_ends_the_run_in_plain_words(tmp_path):
    (tmp_path / "nice_plots.py").write_text("version = 1")
    with torchrun.agents(FAILURES / "needs_package.py", per_node=1) as run:
        run.env = {"PYTHONPATH": str(tmp_path)}
        run.start(0)
        run.env = {}
        run.start(1)
        with pytest.raises(torchrun.AgentsFailed, match=r"(?s)rank 1 \(node 1.*No module named 'nice_plots'"):
            run.wait()


def test_spawn_ends_the_others_and_starts_nobody_again():
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts" / "spawned.py"], capture_output=True, text=True, timeout=240
    )
    assert ended.stderr.splitlines()[-1].endswith("ProcessExitedException: process 1 terminated with signal SIGKILL")
    assert (ended.stdout.count("is here"), ended.stdout.count("is done")) == (2, 0)


# ---------------------------------------------------------------------- the tools
def test_every_program_is_in_a_test():
    tested = Path(__file__).read_text() + "one_gpu.py"  # (which needs a GPU)
    assert [file.name for file in FAILURES.glob("*.py") if file.name not in tested] == []


def test_a_program_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no program nowhere\.py"):
        diagnose.run(tmp_path / "nowhere.py")


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


def test_a_rank_that_has_not_ended_when_the_time_is_over_still_runs(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import time\ntime.sleep(100)\n")
    assert diagnose.run(program, ranks=1, timeout=1)[0].how == "still running"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[rank1]:[E1121 03:51:05.626917968 ProcessGroupGloo.cpp:67] Rank 1 x", "Rank 1 x"),
        ("[/a/b/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:58043. x",
         "Connection closed by peer [127.0.0.1]:PORT. x"),
        ("[c10d] connect to (node-a, 29500)", "connect to (node-a, PORT)"),
    ],
)  # fmt: skip
def test_plain_takes_away_times_ports_and_places_in_torch(line, said):
    assert diagnose.plain(line) == said


def test_an_elastic_run_as_a_picture(tmp_path):
    with pytest.raises(FileNotFoundError, match="did the run start"):
        elastic.read(tmp_path)
    log = elastic.EventLog(tmp_path)
    for second, what, step in ((100.0, "started", 0), (102.0, "step", 1), (103.0, "step", 2)):
        log.write(elastic.Event(second, what, "A", 0, 1, step))
    lives = elastic.read(tmp_path)
    assert [event.seconds for event in lives[0]] == [0.0, 2.0, 3.0]
    assert elastic.sentence(lives, 1.0) == "nobody trains, 0 steps are done"
    assert elastic.sentence(lives, 3.0) == "A trains, 2 steps are done"
    assert "machine A is rank 0 of 1" in elastic.timeline(lives, 2.5).alt


def test_a_picture_of_an_elastic_run_says_when_agents_met_anew_and_which_machine_was_lost():
    def life(machine, start, end):
        return [
            elastic.Event(t, w, machine, 0, 1, 1) for t, w in ((start, "started"), (start + 2, "step"), (end, "step"))
        ]

    drawn = elastic.timeline(
        [life("A", 0.0, 10.0), life("A", 20.0, 30.0), life("B", 20.0, 40.0), life("A", 50.0, 60.0)]
    )
    svg = drawn.data.decode()
    assert (svg.count(">all meet<"), svg.count(">lost<")) == (2, 1)
