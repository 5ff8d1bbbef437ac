"""scripts/train_resumable.py: killed, started again, restarted by the real torchrun; the same bits at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lessons.launchers.failures import diagnose
from utils.training import rendezvous

pytestmark = pytest.mark.extras

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "train_resumable.py"
TIMEOUT = 240


def last_line(folder: Path, *options: str, ranks: int = 3) -> str:
    """Train on ranks that find what torchrun gives to workers; what rank 0, which alone prints, said last."""
    ended = diagnose.run(PROGRAM, "--folder", str(folder), *options, ranks=ranks, timeout=TIMEOUT)
    assert [end.how for end in ended.ranks] == ["finished"] * ranks, ended
    assert all(end.output == "" for end in ended.ranks[1:])
    return ended[0].output.splitlines()[-1]


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_killed_and_started_again_or_restarted_by_torchrun_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    expected = last_line(made(tmp_path / "whole"))
    assert re.fullmatch(r"step 20: loss \d\.\d{6}, parameters [0-9a-f]{16}", expected)

    killed = made(tmp_path / "killed")
    ended = diagnose.run(
        PROGRAM, "--folder", str(killed), "--die-at", "13", "--die-rank", "1", ranks=3, timeout=TIMEOUT
    )
    assert ended[1].how == "killed by SIGKILL"
    assert sorted(os.listdir(killed)) == ["step-00000005.pt", "step-00000010.pt"]
    os.truncate(killed / "step-00000010.pt", 1000)  # and the newest is damaged: five more steps are lost
    again = diagnose.run(PROGRAM, "--folder", str(killed), ranks=3, timeout=TIMEOUT)
    assert again[0].output.splitlines() == [
        "passed over: step-00000010.pt (1,000 bytes) was cut off or damaged",
        "attempt 0: 3 ranks start at step 5",
        expected,
    ]

    options = ["--die-at", "8", "--die-rank", "2", "--folder", str(made(tmp_path / "restarted"))]
    command = [
        sys.executable,
        "-m",
        "lessons.launchers.torchrun",
        "--standalone",
        "--nproc-per-node",
        "3",
        "--max-restarts",
        "1",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(PROGRAM), *options], capture_output=True, text=True, timeout=TIMEOUT, env=environment
    )
    assert done.returncode == 0, done.stderr
    started = [f"attempt {attempt}: 3 ranks start at step {step}" for attempt, step in ((0, 0), (1, 5))]
    assert done.stdout.splitlines() == [*started, expected]


def test_another_number_of_ranks_may_go_on_and_bad_input_is_one_sentence_of_one_rank(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    last_line(folder, "--half", "--steps", "10", ranks=2)
    assert last_line(folder, "--half", "--any-world-size", ranks=1).startswith("step 20: loss ")

    first, second = diagnose.run(PROGRAM, "--folder", str(tmp_path / "nowhere"), ranks=2, timeout=TIMEOUT).ranks
    assert first.how == second.how == "ended with exit code 1"
    assert first.words.startswith("train_resumable.py: there is no folder") and second.words == ""


def test_each_restart_has_its_own_keys_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: dict[str, Any] = {}
    store = dist.HashStore()
    monkeypatch.setattr(dist, "rendezvous", lambda url: iter([(store, 1, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **given: joined.update(given, backend=backend))
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("TORCHELASTIC_RESTART_COUNT", "3")):
        monkeypatch.setenv(name, value)
    assert rendezvous.init_process_group("gloo") == torch.device("cpu")
    assert (joined["backend"], joined["rank"], joined["world_size"]) == ("gloo", 1, 2)
    joined["store"].set("address", "here")
    assert store.get("attempt_3/address") == b"here"
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")  # each start has a store of its own
    rendezvous.init_process_group("gloo")
    assert joined["store"] is store
