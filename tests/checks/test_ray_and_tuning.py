"""Under the checks: notes of every epoch, statistics that let right samples pass, and a Ray that ends."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest

from checks import Wrong
from checks.engine.inside import OpenAnswer, Outcome
from checks.labs.ray_and_tuning import notes, rays, tuning
from checks.labs.ray_and_tuning.notes import Training, curve
from checks.labs.ray_and_tuning.random_searching import Search, judge_draws
from course import outline
from lessons.launchers import ray_here
from lessons.launchers.processes import clean_environment

CONFIG = {"lr": 0.01, "batch_size": 32}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (({"lr": "high", "batch_size": 1},), "two numbers"),
        (({"lr": 0.5, "batch_size": 32}, 1, "last"), "a checkpoint that is not its own"),
    ],
    ids=str,
)
def test_every_epoch_is_noted_and_a_call_that_makes_no_sense_is_refused(arguments, sentence, tmp_path):
    train = Training(str(tmp_path / "notes"))
    _, checkpoint = train(CONFIG, 2)
    assert train(CONFIG, 3, checkpoint)[0] == curve(CONFIG, 5)
    calls = [(note["epochs"], note["total"], note["pid"]) for note in notes.read(train.path)]
    assert calls == [(2, 2, os.getpid()), (3, 5, os.getpid())]
    with pytest.raises(Wrong, match=sentence):
        train(*[checkpoint if one == "last" else one for one in arguments])
    with pytest.raises(Wrong, match=sentence):
        notes.read(train.path)


def test_right_samples_pass_with_every_seed():
    many = Search(1e-5, 1.0, (16, 32, 64, 128), 1000, seed=1)
    for search in (many, *tuning.SEARCHES[1:], tuning.STOPPED[-1]):
        for seed in range(60):
            rng = random.Random(seed)
            rates = (search.low * (search.high / search.low) ** rng.random() for _ in range(search.trials))
            configs = [{"lr": lr, "batch_size": rng.choice(search.batch_sizes)} for lr in rates]
            judge_draws(search, configs)


def test_an_exercise_that_is_not_begun_does_not_start_ray(monkeypatch):
    def nothing(objective):
        raise NotImplementedError

    monkeypatch.setattr(ray_here, "start", lambda _: pytest.fail("Ray was started"))
    with pytest.raises(Outcome, match="not started"), rays.running(OpenAnswer("nothing", nothing, [__file__])):
        pass


def _with_a_ray() -> None:
    with rays.running(SimpleNamespace(function=None)) as storage:
        children = [process.pid for process in psutil.Process().children(recursive=True)]
        print(json.dumps([storage, children]), flush=True)
        time.sleep(600)


@pytest.mark.nightly
def test_ray_goes_with_the_process_of_its_check_when_that_is_killed():
    program = "from test_ray_and_tuning import _with_a_ray; _with_a_ray()"
    environment = clean_environment()
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), environment["PYTHONPATH"]))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as user:
        try:
            storage, pids = json.loads(user.stdout.readline())
            family = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        finally:
            user.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=100)
    assert len(pids) > 2 and alive == []
    shutil.rmtree(Path(storage).parent, ignore_errors=True)  # (a killed one leaves its folder)


@pytest.mark.nightly
def test_the_rule_that_the_lab_shows_is_that_of_rays_scheduler():
    bracket = pytest.importorskip("ray.tune.schedulers.async_hyperband")._Bracket
    cells = nbformat.read(outline.notebook("ray_and_tuning", "solutions"), as_version=4).cells
    names: dict = {"math": math}
    exec(next(cell.source for cell in cells if cell.source.startswith("def goes_on")), names)
    for seed in range(20):
        rng = random.Random(seed)
        losses = [rng.random() for _ in range(30)]
        rungs = bracket(min_t=1, max_t=9, reduction_factor=3, s=0)
        for number, loss in enumerate(losses):
            ray_says = rungs.on_result(SimpleNamespace(trial_id=str(number)), 1, -loss) == "CONTINUE"
            assert names["goes_on"](loss, losses[:number]) == ray_says
