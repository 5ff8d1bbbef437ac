"""scripts/frameworks with TensorFlow: the programs train what one process trains, and end as the lecture says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from checks.labs.other_frameworks import training_tasks
from lessons.launchers import warm_process
from lessons.launchers.frameworks import tf_roles
from utils.training.same_training import LEARNING_RATE, STEPS, Batches

pytestmark = pytest.mark.frameworks
PROGRAMS = Path(__file__).resolve().parents[2] / "scripts" / "frameworks"
CLOSE = 1e-5  # of a loss of about 2, in float32, added up in another order: seen 5e-7
LATE = 180.0  # seconds; each run takes five to ten on a quiet machine


@pytest.fixture(scope="module", autouse=True)
def imported_once() -> Iterator[None]:
    with warm_process.warm("tensorflow"):
        yield


def kept(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of the same training in numpy's float64, gradients by hand."""
    return training_tasks.alone([Batches()[step] for step in range(STEPS)], LEARNING_RATE)[0]


def far_apart(losses: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(losses, others, strict=True))


# ---------------------------------------------------------------------- the programs
@pytest.mark.parametrize("replicas", [2, 4])
def test_mirrored_replicas_train_what_one_process_trains_and_stay_equal(tmp_path, alone, replicas):
    (ended,) = tf_roles.run(PROGRAMS / "with_mirrored.py", tmp_path, replicas, workers=0, timeout=LATE)
    assert (ended.code, ended.output) == (0, "")
    found = kept(tmp_path, "mirrored")
    assert found["replicas"] == replicas and found["spread"] == 0
    assert far_apart(found["losses"], alone) < CLOSE


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_of_several_processes_train_what_one_process_trains_and_one_of_them_keeps_it(tmp_path, alone, workers):
    ended = tf_roles.run(PROGRAMS / "with_multi_worker.py", tmp_path, workers=workers, timeout=LATE)
    assert [one.code for one in ended] == [0] * workers, ended
    found = kept(tmp_path, "multi_worker")
    assert found["workers"] == workers and far_apart(found["losses"], alone) < CLOSE
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"multi_worker.json", "checkpoint", "model-1.index", "model-1.data-00000-of-00001"}


def test_one_worker_with_two_parameter_servers_trains_what_one_process_trains(tmp_path, alone):
    program = PROGRAMS / "with_parameter_server.py"
    ended = tf_roles.run(program, tmp_path, workers=1, chief=True, ps=2, evaluator=True, timeout=LATE)
    assert [(one.role, one.code) for one in ended] == [
        ("chief", 0),
        ("worker", None),
        ("ps", None),
        ("ps", None),
        ("evaluator", 0),
    ]
    found = kept(tmp_path, "parameter_server")
    assert far_apart(found["losses"], alone) < CLOSE and found["updates"] == [STEPS]
    assert [device.split("/device")[0] for device in found["devices"]] == [
        "/job:ps/replica:0/task:0",
        "/job:ps/replica:0/task:1",
    ]
    assert ended[0].output.splitlines() == [f"step {step}" for step in (10, 20, 30, 40)]
    assert ended[4].output.splitlines()[-1].startswith("after step 40: test accuracy 0.9")
    assert len(list(tmp_path.glob("ckpt-4.data-*"))) == 3, "the chief's variable and a file of each ps"


def test_when_a_worker_dies_the_chief_deals_its_parts_to_the_others(tmp_path, alone):
    program, kill = PROGRAMS / "with_parameter_server.py", ("worker", 1, "step 20")
    ended = tf_roles.run(program, tmp_path, 0.05, workers=2, chief=True, ps=1, kill=kill, timeout=LATE)
    assert [(one.role, one.code) for one in ended][1:] == [("worker", None), ("worker", -9), ("ps", None)]
    found = kept(tmp_path, "parameter_server")
    assert sum(found["updates"]) == 2 * STEPS and 0 < found["updates"][1] < STEPS < found["updates"][0]
    assert far_apart(found["losses"], alone) > CLOSE, "asynchronous: parts are computed with weights of different age"
    assert found["losses"][-1] < 0.5


def test_when_a_worker_of_a_mirrored_strategy_dies_all_end_and_nothing_is_kept(tmp_path):
    kill = ("worker", 1, "step 20")
    ended = tf_roles.run(PROGRAMS / "with_multi_worker.py", tmp_path, 0.05, kill=kill, timeout=LATE, grace=LATE)
    assert [one.code for one in ended] == [1, -9], ended
    assert ended[0].last_words.startswith("tensorflow.python.framework.errors_impl.UnavailableError")
    assert "Collective ops is aborted by" in ended[0].output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("roles", "error"),
    [
        ({"workers": 2}, "with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>)"),
        ({"workers": 1, "chief": True, "ps": 1}, "pass this dataset to ClusterCoordinator.create_per_worker_dataset"),
    ],
    ids=["multi_worker", "parameter_server"],
)
def test_fit_of_keras_3_fails(roles, error):
    ended = tf_roles.run(PROGRAMS / "with_keras_fit.py", timeout=LATE, grace=LATE, **roles)
    first = ended[0]
    assert first.code == 1 and error in first.output and "fit has done" not in first.output
    assert first.last_words.startswith("ValueError: ")


def test_fit_of_keras_3_trains_in_one_process():
    (only,) = tf_roles.run(PROGRAMS / "with_keras_fit.py", workers=0, timeout=LATE)
    assert only.code == 0 and "fit has done 5 steps" in only.output


# ---------------------------------------------------------------------- the helper
def test_processes_do_not_share_what_they_import_change_or_are_told(tmp_path, monkeypatch):
    program = tmp_path / "changes.py"
    program.write_text(
        "import os, sys, tensorflow\n"
        "print(getattr(tensorflow, 'changed', 'fresh'), sys.argv[1:], os.environ.get('ONLY_HERE'), sys.path[0])\n"
        "tensorflow.changed = 'changed'\n"
        "os.environ['ONLY_HERE'] = 'set by a process'\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("ONLY_HERE", "yes")
    for told in "yes", None:
        (ended,) = tf_roles.run(program, 1, workers=0, timeout=LATE)
        assert ended.output == f"fresh ['1'] {told} {tmp_path}"
        monkeypatch.delenv("ONLY_HERE", raising=False)


def test_without_a_warm_process_a_run_has_one_of_its_own(tmp_path, program, monkeypatch):
    monkeypatch.delitem(warm_process._shared, "tensorflow")
    before = set(psutil.Process().children(recursive=True))
    assert [one.code for one in tf_roles.run(program, "tell", timeout=LATE)] == [0, 0]
    assert set(psutil.Process().children(recursive=True)) <= before


ROLE = """
import json, os, sys, time
config = json.loads(os.environ.get("TF_CONFIG", "null"))
task = config and config["task"]
print(json.dumps(config))
print("I0000 00:00:17 12 port.cc] noise")
if sys.argv[1] == "wait" and task["type"] != "chief":
    time.sleep(600)
if sys.argv[1] == "fail" and task["index"] == 1:
    raise ValueError("on purpose")
if sys.argv[1] == "last":
    print("ready")
    time.sleep(600 if task["index"] else 0)
"""


@pytest.fixture
def program(tmp_path) -> Path:
    path = tmp_path / "role.py"
    path.write_text(ROLE, encoding="utf-8")
    return path


def test_each_process_learns_its_role_and_all_addresses(program):
    ended = tf_roles.run(program, "tell", workers=2, chief=True, ps=1, evaluator=True, timeout=LATE)
    configs = [json.loads(one.output) for one in ended if one.output]
    assert len(configs) >= 2 and {one["task"]["type"] for one in configs} >= {"chief", "evaluator"}
    assert all(one["cluster"] == configs[0]["cluster"] for one in configs)
    addresses = [address for role in ("chief", "worker", "ps") for address in configs[0]["cluster"][role]]
    assert len(set(addresses)) == 4 and all(address.startswith("127.0.0.1:") for address in addresses)
    (only,) = tf_roles.run(program, "tell", workers=0, timeout=LATE)
    assert (only.code, only.output) == (0, "null")


def test_servers_are_ended_when_the_chief_has_ended(program):
    ended = tf_roles.run(program, "wait", workers=2, chief=True, ps=1, timeout=LATE)
    assert [(one.role, one.index, one.code) for one in ended] == [
        ("chief", 0, 0),
        ("worker", 0, None),
        ("worker", 1, None),
        ("ps", 0, None),
    ]


def test_a_process_that_fails_gives_the_others_a_grace_and_its_error_is_found(program):
    ended = tf_roles.run(program, "fail", timeout=LATE)
    assert [one.code for one in ended] == [0, 1] and ended[1].last_words == "ValueError: on purpose"
    assert ended[0].last_words == ""


def test_a_process_is_killed_when_the_words_come(program):
    assert [one.code for one in tf_roles.run(program, "last", kill=("worker", 1, "ready"), timeout=LATE)] == [0, -9]


def test_whoever_takes_too_long_is_ended_and_no_process_is_left(program):
    before = set(psutil.Process().children(recursive=True))
    ended = tf_roles.run(program, "last", timeout=5)
    assert [one.code for one in ended] == [0, None]
    left = [one for one in psutil.Process().children(recursive=True) if one not in before]
    assert psutil.wait_procs(left, timeout=LATE)[1] == []


def test_ports_are_different_and_free():
    import socket

    from utils.ranks.ports import free_ports

    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_the_environment_says_nothing_of_another_cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert "TF_CONFIG" not in warm_process.environment(tmp_path) and os.environ["TF_CONFIG"] == "{}"
