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
from checks.labs.ray_and_tuning import halving, random_searching, rays, samples, tuning
from checks.labs.ray_and_tuning.notes import START, Notes, Training, curve
from checks.labs.ray_and_tuning.searches import Call, Search
from course import outline
from lessons.launchers import ray_here
from lessons.launchers.processes import clean_environment

CELLS = nbformat.read(outline.notebook("ray_and_tuning", "solutions"), as_version=4).cells
CONFIG = {"lr": 0.01, "batch_size": 32}


# ---------------------------------------------------------------------- the trainings
def test_a_loss_falls_from_rung_to_rung_and_the_order_stays():
    for lr in (1e-4, 0.005, 0.02, 0.19):
        losses = [curve({"lr": lr, "batch_size": 64}, epochs) for epochs in (1, 3, 9)]
        best = [curve({"lr": 0.02, "batch_size": 32}, epochs) for epochs in (1, 3, 9)]
        assert losses == sorted(losses, reverse=True) and losses[-1] < START
        assert all(one < other for one, other in zip(best, losses, strict=True))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (({"lr": 1.0},), "a dict with lr and batch_size"),
        (({"lr": "high", "batch_size": 1},), "two numbers"),
        ((CONFIG, 0), "at least 1"),
        ((CONFIG, 1.5), "at least 1"),
        ((CONFIG, 50), "does each trial end"),
        ((CONFIG, 1, "mine"), "none that train has returned"),
        (({"lr": 0.5, "batch_size": 32}, 1, "last"), "of another configuration"),
    ],
    ids=str,
)
def test_every_epoch_is_noted_and_a_call_that_makes_no_sense_is_refused(arguments, sentence, tmp_path):
    notes = Notes(str(tmp_path / "notes"))
    train = Training(notes, most_epochs=9)
    _, checkpoint = train(CONFIG, 2)
    assert train(CONFIG, 3, checkpoint)[0] == curve(CONFIG, 5)
    assert [(note["epochs"], note["total"], note["pid"]) for note in notes.read()] == [
        (2, 2, os.getpid()),
        (3, 5, os.getpid()),
    ]
    with pytest.raises(RuntimeError, match=sentence):
        train(*[checkpoint if one == "last" else one for one in arguments])
    with pytest.raises(Wrong, match=sentence):
        notes.read()


# ---------------------------------------------------------------------- samples
MANY, SOME = Search(1e-5, 1.0, (16, 32, 64, 128), 1000, seed=1), tuning.SEARCHES[-1]


def _calls(search: Search, draw, seed: int) -> list[Call]:
    rng, found = random.Random(seed), []
    for number in range(search.trials):
        lr, size = draw(search, rng, number)
        found.append(Call(number, {"lr": lr, "batch_size": size}, 1, 1, 1.0, 0))
    return found


def _right(search, rng, number):
    return search.low * (search.high / search.low) ** rng.random(), rng.choice(search.batch_sizes)


def test_right_samples_pass_with_every_seed():
    for search in (MANY, *tuning.SEARCHES[1:], tuning.STOPPED[-1]):
        for seed in range(200):
            samples.judge_samples(search, _calls(search, _right, seed))


@pytest.mark.parametrize(
    ("search", "draw", "sentence"),
    [
        (MANY, lambda s, rng, n: (s.low * (s.high / s.low) ** rng.random() ** 2, rng.choice(s.batch_sizes)), "not log"),
        (MANY, lambda s, rng, n: (s.low * (s.high / s.low) ** ((n + rng.random()) / s.trials), 16), "equal distances"),
        (MANY, lambda s, rng, n: (_right(s, rng, n)[0], s.batch_sizes[n * 4 // s.trials]), "dealt out"),
        (SOME, lambda s, rng, n: (s.low * 1e3 ** rng.random(), rng.choice(s.batch_sizes)), "draw from all|not log"),
        (SOME, lambda s, rng, n: (s.high / 1e3 ** rng.random(), rng.choice(s.batch_sizes)), "draw from all|not log"),
        (SOME, lambda s, rng, n: (rng.uniform(s.low, s.high), rng.choice(s.batch_sizes)), "are uniform"),
        (SOME, lambda s, rng, n: (_right(s, rng, n)[0], s.batch_sizes[0]), "batch sizes are not equally likely"),
        (
            SOME,
            lambda s, rng, n: (float(f"{_right(s, rng, n)[0]:.1e}"), rng.choice(s.batch_sizes)),
            "one or two digits|come again",
        ),
    ],
    ids=["squared", "strata", "in blocks", "the lower half", "the upper half", "uniform", "one size", "two digits"],
)
def test_wrong_samples_are_seen_with_every_seed(search, draw, sentence):
    for seed in range(30):
        with pytest.raises(Wrong, match=sentence):
            samples.judge_samples(search, _calls(search, draw, seed))


# ---------------------------------------------------------------------- Ray
def test_an_exercise_that_is_not_begun_does_not_start_ray(monkeypatch):
    def nothing(objective):
        raise NotImplementedError

    def begun(objective):
        if objective.grows:
            raise NotImplementedError

    monkeypatch.setattr(ray_here, "start", lambda _: pytest.fail("Ray was started"))
    with pytest.raises(Outcome, match="not started"), rays.running(OpenAnswer("nothing", nothing, [__file__])):
        pass
    rays._begun(OpenAnswer("begun", begun, [__file__]))  # (whatever else it raises is no matter of it)


def _with_a_ray() -> None:
    with rays.running(SimpleNamespace(function=None)) as storage:
        children = [process.pid for process in psutil.Process().children(recursive=True)]
        print(json.dumps([storage, children]), flush=True)
        time.sleep(600 * (sys.argv[1] == "stays"))


@pytest.mark.parametrize("how", ["stays", "ends"])
def test_ray_goes_with_the_process_of_its_check_whether_that_ends_or_is_killed(how):
    program = "from test_ray_and_tuning import _with_a_ray; _with_a_ray()"
    environment = clean_environment()
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), environment["PYTHONPATH"]))
    with subprocess.Popen([sys.executable, "-c", program, how], stdout=subprocess.PIPE, env=environment) as user:
        try:
            storage, pids = json.loads(user.stdout.readline())
            family = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        finally:
            if how == "stays":
                user.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=100)
    assert len(pids) > 2 and alive == [] and (how == "stays" or not Path(storage).exists())
    shutil.rmtree(Path(storage).parent, ignore_errors=True)  # (a killed one leaves its folder)


def test_the_rule_that_the_lab_shows_is_that_of_rays_scheduler():
    from ray.tune.schedulers.async_hyperband import _Bracket

    names: dict = {"math": math}
    exec(next(cell.source for cell in CELLS if cell.source.startswith("def goes_on")), names)
    for seed in range(20):
        rng = random.Random(seed)
        losses = [rng.random() for _ in range(30)]
        bracket = _Bracket(min_t=1, max_t=9, reduction_factor=3, s=0)
        for number, loss in enumerate(losses):
            ray_says = bracket.on_result(SimpleNamespace(trial_id=str(number)), 1, -loss) == "CONTINUE"
            assert names["goes_on"](loss, losses[:number]) == ray_says


# ---------------------------------------------------------------------- the text
def test_the_text_of_the_lab_tells_the_right_counts():
    text = " ".join("\n".join(cell.source for cell in CELLS).split())
    assert f"Of a search of {max(case['trials'] for case in random_searching.CASES):,} trials the samples" in text
    table = halving.play(halving.cases(random.Random(), 0), *halving.OFFICIAL.functions())
    assert f"{table['epochs in all']} epochs instead of 729" in text
    trials = sum(search.trials for search in tuning.SEARCHES)
    assert f"{trials} trials in {len(tuning.SEARCHES)} searches" in text
    assert f"at most {tuning.PROCESSES} processes" in text
    whole = tuning.STOPPED[-1]
    most = f"{whole.trials} trials of at most {whole.most_epochs} epochs, that is {whole.trials * whole.most_epochs}"
    assert most in text
