"""The processes of a TensorFlow cluster: roles, addresses, how they end. (The lecture runs the programs themselves.)"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lessons.launchers import warm_process
from lessons.launchers.frameworks import tf_roles

pytestmark = pytest.mark.frameworks
LATE = 180.0  # seconds
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


@pytest.fixture(scope="module", autouse=True)
def imported_once() -> Iterator[None]:
    with warm_process.warm("tensorflow"):
        yield


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
    roles = [("chief", 0, 0), ("worker", 0, None), ("worker", 1, None), ("ps", 0, None)]
    assert [(one.role, one.index, one.code) for one in ended] == roles


def test_a_process_that_fails_gives_the_others_a_grace_and_its_error_is_found(program):
    ended = tf_roles.run(program, "fail", timeout=LATE)
    assert [one.code for one in ended] == [0, 1] and ended[1].last_words == "ValueError: on purpose"
    assert ended[0].last_words == ""


def test_a_process_is_killed_when_the_words_come(program):
    assert [one.code for one in tf_roles.run(program, "last", kill=("worker", 1, "ready"), timeout=LATE)] == [0, -9]


@pytest.mark.nightly
def test_whoever_takes_too_long_is_ended_and_no_process_is_left(program):
    before = set(psutil.Process().children(recursive=True))
    ended = tf_roles.run(program, "last", timeout=5)
    assert [one.code for one in ended] == [0, None]
    left = [one for one in psutil.Process().children(recursive=True) if one not in before]
    assert psutil.wait_procs(left, timeout=LATE)[1] == []


def test_the_environment_says_nothing_of_another_cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert "TF_CONFIG" not in warm_process.environment(tmp_path) and os.environ["TF_CONFIG"] == "{}"
