"""Under the checks: processes that are watched and killed, damaged files, the task."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import known_answers
import labs_support
import nbformat
import psutil
import pytest
import torch

from checks import Wrong, checkpointing
from checks.checkpointing import kills as kill_plans
from checks.checkpointing import resuming, saved_files, watched
from checks.checkpointing.lives import FAILED, Life, first_failure, live
from checks.checkpointing.resume_task import Decay, Momentum, Task
from course import outline

ROOT = Path(__file__).resolve().parents[2]
TEXT = " ".join(
    "\n".join(
        cell.source for cell in nbformat.read(outline.notebook("checkpointing", "solutions"), as_version=4).cells
    ).split()
)


# ---------------------------------------------------------------------- processes that are watched and killed
def _answer():
    """Stands in for an ``OpenAnswer``."""

    class Answer:
        def function(self) -> None: ...

    return Answer()


def _write_well(path: Path, size: int = 1000) -> None:
    half = path.with_suffix(".half")
    with open(half, "wb") as file:
        file.write(b"x" * size)
        file.flush()
        os.fsync(file.fileno())
    os.replace(half, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def test_each_step_with_files_is_noted(tmp_path):
    def body(watch):
        watch.files(_answer())
        _write_well(tmp_path / "new")

    (life,) = live(body)
    assert [(note["what"], note.get("size")) for note in life.notes] == [
        ("open", None),
        ("fsync", 1000),
        ("rename", None),
        ("fsync", os.stat(tmp_path).st_size),
    ]
    assert life.notes[1]["ino"] == os.stat(tmp_path / "new").st_ino and life.notes[3]["folder"] and life.ended == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_what_child_processes_do_to_names_is_noted_too_and_in_order(tmp_path):
    def body(watch):
        watch.files(_answer(), str(tmp_path))
        (tmp_path / "half").write_bytes(b"x")
        os.sync()
        subprocess.run(["mv", tmp_path / "half", tmp_path / "new"], check=True)
        subprocess.run(["cp", tmp_path / "new", tmp_path / "copy"], check=True)
        watch.names()

    (life,) = live(body)
    told = [(note["what"], note.get("event"), note.get("name")) for note in life.notes]
    moved = [("entry", "moved from", "half"), ("entry", "moved to", "new")]
    assert told.index(("sync", None, None)) < told.index(moved[0]) and told[told.index(moved[0]) :][:2] == moved
    assert ("entry", "made", "copy") in told and len(
        {n["cookie"] for n in life.notes if "moved" in n.get("event", "")}
    ) == 1


def test_a_rename_relative_to_a_descriptor_is_noted_with_its_whole_path(tmp_path):
    def body(watch):
        watch.files(_answer())
        folder = os.open(tmp_path, os.O_RDONLY)
        os.close(os.open("half", os.O_CREAT | os.O_WRONLY | os.O_SYNC, dir_fd=folder))
        os.rename("half", "new", src_dir_fd=folder, dst_dir_fd=folder)

    (life,) = live(body)
    assert [note.get("synced") for note in life.of("open")] == [True]
    assert [(n["source"], n["target"]) for n in life.of("rename")] == [(str(tmp_path / "half"), str(tmp_path / "new"))]


@pytest.mark.parametrize(("events", "left"), [(0, []), (1, ["new.half"]), (2, ["new.half"]), (3, ["new"])])
def test_a_process_dies_before_the_step_that_it_is_told(tmp_path, events, left):
    def body(watch):
        watch.files(_answer())
        watch.kill_before(events)
        _write_well(tmp_path / "new")

    (life,) = live(body)
    assert life.ended == -signal.SIGKILL and os.listdir(tmp_path) == left


def test_a_process_dies_at_the_byte_that_it_is_told_or_gets_an_error(tmp_path):
    def body(watch, fatal):
        watch.limit(300, fatal)
        _write_well(tmp_path / "new")

    killed, full = (live(lambda watch, fatal=fatal: body(watch, fatal))[0] for fatal in (True, False))
    assert (tmp_path / "new.half").stat().st_size == 300
    assert killed.ended == -signal.SIGXFSZ and first_failure([killed]) is None
    assert full.ended == FAILED and "File too large" in first_failure([full])["sentence"]


def test_one_that_ends_early_takes_the_others_with_it_and_the_first_failure_is_told():
    def fails(watch):
        raise Wrong("mine")

    def waits(watch):
        time.sleep(60)

    lives = live(waits, fails, waits)
    assert [life.ended for life in lives] == [-signal.SIGKILL, FAILED, -signal.SIGKILL]
    assert first_failure(lives)["sentence"] == "mine"


def test_processes_that_never_end_are_ended():
    before = set(psutil.Process().children())  # of other tests in this process
    lives = live(lambda watch: time.sleep(60), seconds=0.2)
    assert lives == [Life([], None)]
    assert set(psutil.Process().children()) <= before


# ---------------------------------------------------------------------- the training
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_twenty_kills_come_in_every_kind_and_in_order(ranks, seed):
    case, few = resuming.draw(ranks)(random.Random(seed))
    kills = kill_plans.plan(case)
    assert len(kills) == resuming.KILLS == 20 and kills == kill_plans.plan(case)
    assert 2 * few["every"] < few["steps"] and len(kill_plans.plan(few)) == few["kills"]
    assert [kill.step for kill in kills] == sorted({kill.step for kill in kills})
    assert kills[0] == kill_plans.Kill(0, event=1), "in the very first save"
    assert sum(bool(kill.moment) for kill in kills) == 9
    assert {kill.moment for kill in kills if kill.moment} <= set(watched.MOMENTS)
    assert sum(kill.event is not None for kill in kills[1:]) == sum(kill.byte is not None for kill in kills) == 5
    assert {kill.rank for kill in kills} <= set(range(ranks))


@pytest.mark.parametrize("way", ["cut off", "empty", "a changed byte", "another changed byte"])
def test_a_damaged_checkpoint_is_not_good_and_only_a_changed_byte_is_loaded(tmp_path, way):
    path = tmp_path / "step-5.pt"
    torch.save({"w": torch.zeros(2000)}, path)
    assert saved_files.good(path, set())
    digest = saved_files.damage(path, way)
    assert not saved_files.good(path, set()) and not saved_files.good(path, {digest})
    if way == "a changed byte":
        assert int((torch.load(path)["w"] != 0).sum()) == 1
    elif way != "another changed byte":
        with pytest.raises((RuntimeError, OSError, EOFError)):
            torch.load(path)


def test_every_part_and_generator_is_another_after_each_step():
    torch.set_num_threads(1)
    task = Task()
    parts = task.new()
    seen = [watched.facts(parts)]
    for number in range(task.steps):
        task.step(number, parts)
        seen.append(watched.facts(parts))
    for name in seen[0]:
        values = [facts[name] for facts in seen]
        if name == "python":
            assert len(set(values)) == len(values)
        else:
            assert all(one != other for one, other in itertools.pairwise(values)), name
    assert parts["batches"].epoch >= 2  # so kills fall into several epochs


def test_a_state_that_is_loaded_goes_on_as_the_old_one():
    task = Task()
    parts = task.new()
    for number in range(7):
        task.step(number, parts)
    states = {name: part.state_dict() for name, part in parts.items()}
    states["model"] = {name: value.clone() for name, value in states["model"].items()}
    states["optimizer"] = dict(states["optimizer"], velocities=[v.clone() for v in states["optimizer"]["velocities"]])
    generators = torch.get_rng_state(), random.getstate()
    task.step(7, parts)
    right = watched.facts(parts)
    parts = task.new()
    for name, part in parts.items():
        part.load_state_dict(states[name])
    torch.set_rng_state(generators[0])
    random.setstate(generators[1])
    task.step(7, parts)
    assert watched.facts(parts) == right


def test_the_quick_optimizer_and_schedule_are_those_of_torch():
    weights = [torch.linspace(0, 1, 5).requires_grad_() for _ in range(2)]
    mine, real = Momentum(weights[:1]), torch.optim.SGD(weights[1:], lr=0.1, momentum=0.9)
    schedule = Decay(mine)
    for _ in range(12):
        for weight in weights:
            weight.grad = (weight.detach() - 2) ** 2
        real.param_groups[0]["lr"] = mine.lr
        mine.step(), real.step(), schedule.step()
    torch.testing.assert_close(*weights)
    assert mine.lr == pytest.approx(0.1 * 0.97**5)


# ---------------------------------------------------------------------- shards
@pytest.mark.parametrize("way", ["cut off", "empty", "a changed byte"])
def test_a_checkpoint_that_is_no_archive_is_good_until_it_is_damaged(tmp_path, way):
    path = tmp_path / "step-5.pt"
    path.write_bytes(b"anything else")
    assert saved_files.good(path, set())
    assert not saved_files.good(path, {saved_files.damage(path, way)})


def test_a_line_in_a_log_is_no_save():
    before = {"log": (1, 10, 5_000), "last.pt": (2, 10, 9_000)}
    assert saved_files.written(before, before | {"log": (1, 11, 5_040)}) == 40 < watched.SAVED
    assert saved_files.written(before, before | {"last.pt": (3, 11, 9_000)}) == 9_000
    assert saved_files.written(before, {"log": (1, 10, 5_000)}) == 0  # an old checkpoint goes


def test_the_text_of_the_lab_tells_the_right_counts():
    assert f"{len(kill_plans.TROUBLE)} damaged checkpoints" in TEXT
    assert f"{resuming.STEPS} steps, a checkpoint every {resuming.EVERY}" in TEXT


def test_a_save_that_is_killed_leaves_nothing_in_the_systems_folder_for_temporary_files():
    answers = known_answers.load(labs_support.ANSWERS / "checkpointing" / "saving.py", ["save"])
    (known,) = [one for one in answers if one.name == "the temporary file is elsewhere"]
    before = set(Path(tempfile.gettempdir()).glob("checkpoint-*"))
    labs_support.assert_judged(known, checkpointing.saving)
    assert set(Path(tempfile.gettempdir()).glob("checkpoint-*")) <= before
