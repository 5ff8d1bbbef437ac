"""The training that is tuned, searches on recorded curves, a Ray of this machine, its programs."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
from pytest import MonkeyPatch
from ranks_support import gone

from course.notebooks import ROOT
from lessons.launchers import ray_here
from lessons.launchers.ray_here import Here
from lessons.pictures.search import landscape, races, rungs, scatter
from lessons.training import searches, tuning

pytestmark = pytest.mark.frameworks
GOAL = {"metric": "loss", "mode": "min"}
RATES = (0.1, 1.0, 10.0)
LIMIT = 240  # seconds that a program may take on a machine that is busy


@pytest.fixture(scope="module")
def table() -> tuning.Table:
    """Curves made up, so that their order is known: the nearer the learning rate is to 1, the lower, at each epoch."""
    rates = [10 ** (power / 8) for power in range(-16, 9)]

    def curve(rate: float, batch: int) -> list[float]:
        return [(1 + abs(numpy.log10(rate)) + batch / 1000) / (10 + epoch) for epoch in range(tuning.EPOCHS)]

    return tuning.Table({0: {batch: {rate: curve(rate, batch) for rate in rates} for batch in tuning.BATCHES}})


# ---------------------------------------------------------------------- the training
def test_each_network_learns_what_it_would_alone() -> None:
    together = tuning.Training(RATES, 64, images=256)
    curves = [together.epoch() for _ in range(2)]
    for number, rate in enumerate(RATES[:2]):
        alone = tuning.Training(rate, 64, images=256)
        assert [alone.epoch()[0] for _ in range(2)] == pytest.approx([losses[number] for losses in curves], rel=1e-5)
    assert curves[-1][1] < curves[-1][0] < tuning.GUESSING
    assert curves[-1][2] == tuning.GUESSING  # it has diverged


@pytest.mark.parametrize(("optimizer", "rate", "decay"), [("SGD", 0.5, 0.01), ("AdamW", 0.03, 0.1)])
def test_a_network_takes_the_steps_of_torchs_optimizer(optimizer: str, rate: float, decay: float) -> None:
    import torch
    from torch import nn

    from utils.training import data

    ours = tuning.Training(rate, 1080, decay, optimizer=optimizer)
    model = nn.Sequential(nn.Linear(64, tuning.HIDDEN), nn.Tanh(), nn.Linear(tuning.HIDDEN, 10))
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), ours.weights, strict=True):
            parameter.copy_(weight[0].T if weight.shape[1] > 1 else weight[0, 0])
    theirs = getattr(torch.optim, optimizer)(model.parameters(), lr=rate, weight_decay=decay)
    digits = data.digits()
    images, labels = digits.train_images.flatten(1), digits.train_labels
    for _ in range(3):
        theirs.zero_grad()
        nn.functional.cross_entropy(model(images[:1080]), labels[:1080]).backward()
        theirs.step()
        found = ours.epoch()
    loss = nn.functional.cross_entropy(model(images[1080:]), labels[1080:]).item()
    assert found == pytest.approx([loss], rel=1e-4)


@pytest.mark.parametrize(("optimizer", "rate"), [("SGD", 0.3), ("AdamW", 0.01)])
def test_a_training_goes_on_exactly_from_its_state(optimizer: str, rate: float) -> None:
    uninterrupted = tuning.Training(rate, 128, seed=3, optimizer=optimizer)
    whole = [uninterrupted.epoch()[0] for _ in range(4)]
    first = tuning.Training(rate, 128, seed=3, optimizer=optimizer)
    begun = [first.epoch()[0] for _ in range(2)]
    second = tuning.Training(rate, 128, seed=3, optimizer=optimizer)
    second.load_state_dict(first.state_dict())
    first.epoch()  # what the first does later is not seen by the second
    assert begun + [second.epoch()[0] for _ in range(2)] == whole


def test_seeds_differ_and_small_sets_still_have_a_batch() -> None:
    one, other = (tuning.Training(0.3, 128, seed=seed).epoch() for seed in (0, 1))
    assert one != other
    assert tuning.Training(0.3, 256, images=100).epoch()[0] != tuning.Training(0.3, 256, images=100).losses()[0]


def test_a_table_holds_the_trainings_that_one_would_do() -> None:
    table = tuning.measure(seeds=(1,), rates=(0.1, 1.0), batches=(128, 256), epochs=2)
    alone = tuning.Training(1.0, 256, seed=1)
    assert table.curve({"lr": 1.0, "batch": 256}, 1) == pytest.approx([alone.epoch()[0] for _ in range(2)])
    row, between = table.curves[1][256], table.curve({"lr": 10**-0.5, "batch": 256}, 1)  # half way, in ratio
    assert between == pytest.approx([(a * b) ** 0.5 for a, b in zip(row[0.1], row[1.0], strict=True)])
    assert [table.curve({"lr": lr, "batch": 256}, 1) for lr in (0.01, 5.0)] == [row[0.1], row[1.0]]
    assert table.last(1) == [[table.curves[1][batch][rate][-1] for rate in (0.1, 1.0)] for batch in (128, 256)]
    assert table.best(1) == min(min(curve) for row in table.curves[1].values() for curve in row.values())
    decays = tuning.measure_decay((0.0, 0.1), batch=256, epochs=1)
    assert decays.curve({"lr": 1.0, "decay": 0.1}, 0) != decays.curve({"lr": 1.0, "decay": 0.0}, 0)


# ---------------------------------------------------------------------- searches on recorded curves
def some_points(count: int) -> searches.Points:
    source = numpy.random.RandomState(0)
    return searches.Points(
        [{"lr": 10 ** source.uniform(-2, 1), "batch": int(source.choice(tuning.BATCHES))} for _ in range(count)]
    )


def schedulers() -> dict[str, Callable[[], Any]]:
    from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler

    return {
        "none": lambda: None,
        "ASHA": lambda: ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3, **GOAL),
        "HyperBand": lambda: HyperBandScheduler(max_t=27, reduction_factor=3, **GOAL),
    }


@pytest.mark.parametrize("name", ["none", "ASHA", "HyperBand"])
def test_a_search_spends_its_budget_and_repeats_no_epoch(name: str, table: tuning.Table) -> None:
    pytest.importorskip("ray")
    found = searches.replay(table, 0, some_points(300), schedulers()[name](), 432)
    assert found.epochs == len(found.best) == 432
    assert found.best == sorted(found.best, reverse=True)
    for trial in found.trials:  # also one that was paused goes on where it was
        assert trial.losses == table.curve(trial.config, 0)[: len(trial.losses)]
    assert found.best[-1] == min(min(trial.losses) for trial in found.trials)
    assert len(found.trials) == 16 if name == "none" else len(found.trials) > 32


def test_halving_keeps_the_best_third(table: tuning.Table) -> None:
    pytest.importorskip("ray")
    found = searches.replay(table, 0, some_points(49), schedulers()["HyperBand"](), 10_000)
    lengths = Counter(len(trial.losses) for trial in found.trials)
    # Ray's brackets of 4, 6, 12 and 27 trials: 4 for 27 epochs; 6 for 9 and 2 of them on; 12 for 3, then 4, then 2 (it
    # rounds up); 27 for 1, then 9, 3, 1. (Li et al. 2018, section 3, are the same but for rounding.)
    assert lengths == {27: 4 + 2 + 2 + 1, 9: 4 + 2 + 2, 3: 8 + 6, 1: 18}
    first = [trial for trial in found.trials if len(trial.losses) == 1]
    others = [trial for trial in found.trials[-27:] if len(trial.losses) > 1]
    assert max(trial.losses[0] for trial in others) <= min(trial.losses[0] for trial in first)


def test_a_search_ends_when_its_points_do(table: tuning.Table) -> None:
    settings = searches.grid({"lr": [0.1, 1.0], "batch": [32, 64]})
    assert settings == [{"lr": rate, "batch": batch} for rate in (0.1, 1.0) for batch in (32, 64)]
    found = searches.replay(table, 0, searches.Points(settings), None, 10_000)
    assert [trial.config for trial in found.trials] == settings
    assert found.epochs == 4 * tuning.EPOCHS


def test_searchers_that_learn_see_every_result(table: tuning.Table) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("ray")
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    logging.getLogger("ray").setLevel(logging.ERROR)
    space = {"lr": tune.loguniform(0.01, 10), "batch": tune.choice([64])}
    found = searches.replay(table, 0, OptunaSearch(space, seed=0, **GOAL), None, 80 * tuning.EPOCHS)
    begin, end = ([abs(numpy.log10(t.config["lr"])) for t in part] for part in (found.trials[:10], found.trials[-40:]))
    assert numpy.median(end) < numpy.median(begin) / 2  # it comes nearer to 1, where the best curves are


def test_pictures_of_searches_say_what_they_show() -> None:
    losses = [[0.5, 0.2, 2.3], [0.9, 0.4, 2.3]]
    picture = landscape(losses, RATES, (16, 32), "Loss", {"grid": [(0.1, 16, 27), (1.0, 32, 3)], "random": []})
    assert picture.alt == (
        "Loss. The lowest loss, 0.2, is at learning rate 1 and batch size 16. grid: 2 settings tried."
    )
    assert "TPE: 1 to 3, median 2" in scatter({"TPE": [1.0, 3.0, 2.0]}, "%", "Repeats").alt
    raced = races(
        {"TPE": [[3.0, 5.0], [1.0, 2.0]], "random": [[9.0, 9.0], [8.0, 8.0]]}, (9, 18), "e", "%", "R", "random"
    )
    assert raced.alt == "R. % over e, medians. TPE: 4 to 1.5; random: 9 to 8."
    cut = rungs([[2.0], [1.5, 1.0, 0.9], [1.4, 0.8, 0.5, 0.3]], (1, 3), "Rungs")
    assert "3 trials: 2 go on after epoch 1, 1 go on after epoch 3." in cut.alt


# ---------------------------------------------------------------------- a Ray of this machine
@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    pytest.importorskip("ray")
    here = ray_here.start(cpus=1)
    try:
        ray_here.add_node(cpus=1)
        yield here
    finally:
        ray_here.stop()
    assert not here.storage.parent.exists()


def test_all_of_it_listens_on_loopback_and_nothing_is_reported(here: Here) -> None:
    import ray

    daemons = ray_here._processes(here.storage.parent)
    names = {process.name() for process in daemons}
    assert {"gcs_server", "raylet"} <= names
    heard = [
        connection.laddr.ip
        for process in daemons
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert heard and all(ip.removeprefix("::ffff:") == "127.0.0.1" for ip in heard)
    assert here.address.startswith("127.0.0.1:")
    assert [node["Resources"]["CPU"] for node in ray.nodes()] == [1.0, 1.0]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_replay_decides_as_the_real_controller_does(here: Here, table: tuning.Table) -> None:
    """The same scheduler, settings and curves: once with Ray's processes, one trial at a time, and once replayed."""
    from ray import tune

    settings = [{"lr": rate, "batch": 64} for rate in (10.0, 1.0, 0.01, 0.5, 3.0, 0.1)]
    found = searches.replay(table, 0, searches.Points(settings), schedulers()["ASHA"](), 10_000)
    curves = {setting["lr"]: table.curve(setting, 0) for setting in settings}

    def trial(config: dict[str, Any]) -> None:
        for loss in curves[config["lr"]]:
            tune.report({"loss": loss})

    results = tune.Tuner(
        trial,
        param_space={"lr": tune.grid_search([setting["lr"] for setting in settings])},
        tune_config=tune.TuneConfig(scheduler=schedulers()["ASHA"](), max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(name="as_replayed", storage_path=str(here.storage), verbose=0),
    ).fit()
    real = {result.metrics["config"]["lr"]: result.metrics["training_iteration"] for result in results}
    assert real == {trial.config["lr"]: len(trial.losses) for trial in found.trials}
    assert len(set(real.values())) > 1  # some were stopped, some not


def _is_json(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_text()))
    except ValueError:
        return False


def test_an_experiment_whose_driver_was_killed_goes_on(here: Here, tmp_path: Path) -> None:
    diary = tmp_path / "diary.txt"
    command = [sys.executable, str(ROOT / "scripts/tune_digits.py"), str(tmp_path)]
    environment = {**os.environ, "RAY_ADDRESS": here.address, "TUNE_GLOBAL_CHECKPOINT_S": "0"}

    def finished() -> set[str]:
        lines = diary.read_text().splitlines() if diary.exists() else []
        return {line.split()[0] for line in lines if line.endswith(" 9")}

    driver = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT
    while len(finished()) < 3:
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    while (
        True
    ):  # Ray writes its state in place: a kill in the middle would leave half a file, which nobody can go on from
        driver.send_signal(signal.SIGSTOP)
        if all(_is_json(file) for file in tmp_path.glob("*/experiment_state-*.json")):
            break
        driver.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    kept = sorted(finished())[:2]  # Ray may not yet have known of the one that was last
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert again.returncode == 0, again.stderr
    assert "6 trials, 0 errors" in again.stdout
    lines = diary.read_text().splitlines()
    assert len(finished()) == 6 and len(set(lines)) == 54
    assert sum(Counter(lines)[f"{rate} 1"] for rate in kept) <= 3


def test_train_py_gives_the_same_losses_under_torchrun_and_ray(here: Here, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    commands = {
        "torchrun": [*torchrun, str(ROOT / "scripts/train.py")],
        "ray": [sys.executable, str(ROOT / "scripts/ray_train.py"), "--kill-after", "20"],
    }
    losses = {}
    for name, command in commands.items():
        own = {**os.environ, "RAY_ADDRESS": here.address} if name == "ray" else None
        folder = ["--folder", str(tmp_path / name), "--steps", "60", "--every", "5"]
        ended = subprocess.run([*command, *folder], env=own, capture_output=True, text=True, timeout=LIMIT)
        assert ended.returncode == 0, ended.stderr
        lines = [json.loads(line) for line in (tmp_path / name / "losses.jsonl").read_text().splitlines()]
        assert [line["ranks"] for line in lines] == [2] * len(lines)
        losses[name] = {line["step"]: line["loss"] for line in lines}
    told = (tmp_path / "ray" / "attempts.txt").read_text().splitlines()
    attempt = re.compile(r"2 workers \(processes (\d+), (\d+)\) on 2 nodes begin after step (\d+)")
    *processes, begun = zip(*[attempt.fullmatch(line).groups() for line in told], strict=True)
    assert begun == ("0", "20")  # it did not begin anew
    assert len({one for both in processes for one in both}) == 4  # all workers were started again
    assert list(losses["ray"]) == list(losses["torchrun"]) == list(range(5, 61, 5))
    same = [step for step in losses["ray"] if step <= 20]
    assert [losses["ray"][step] for step in same] == pytest.approx(
        [losses["torchrun"][step] for step in same], rel=1e-4
    )
    assert losses["ray"][60] < losses["ray"][5] / 2


def test_a_private_ray_that_was_not_started_leaves_nothing() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ZeroDivisionError), ray_here.private() as settings:
        folder = ray_here.storage().parent
        assert settings["_temp_dir"] == str(folder) and folder.is_dir()
        raise ZeroDivisionError
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="there is no Ray"):
        ray_here.storage()


def test_without_a_ray_there_is_nothing_to_stop_or_to_extend(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(ray_here, "_folder", None)
    ray_here.stop()
    with pytest.raises(RuntimeError, match="start"):
        ray_here.add_node()


def test_nothing_is_left_after_a_program_that_forgets_to_stop(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    program = tmp_path / "forgets.py"
    program.write_text(
        "from lessons.launchers import ray_here\nhere = ray_here.start(cpus=1)\n"
        "import os, ray\n"
        "worker = ray.get(ray.remote(lambda: os.getpid()).remote())\n"
        "print(here.storage.parent, worker, *[p.pid for p in ray_here._processes(here.storage.parent)])\n"
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    folder, *pids = ended.stdout.split()
    assert not Path(folder).exists() and len(pids) > 4
    assert gone([int(pid) for pid in pids])
