"""The training that is tuned, searches on recorded curves, a Ray of this machine, its programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
from ranks_support import gone

from course.notebooks import ROOT
from lessons.launchers import ray_here
from lessons.launchers.ray_here import Here
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


def test_a_table_holds_the_trainings_that_one_would_do() -> None:
    table = tuning.measure(seeds=(1,), rates=(0.1, 1.0), batches=(128, 256), epochs=2)
    alone = tuning.Training(1.0, 256, seed=1)
    assert table.curve({"lr": 1.0, "batch": 256}, 1) == pytest.approx([alone.epoch()[0] for _ in range(2)])
    row, between = table.curves[1][256], table.curve({"lr": 10**-0.5, "batch": 256}, 1)  # half way, in ratio
    assert between == pytest.approx([(a * b) ** 0.5 for a, b in zip(row[0.1], row[1.0], strict=True)])
    assert [table.curve({"lr": lr, "batch": 256}, 1) for lr in (0.01, 5.0)] == [row[0.1], row[1.0]]
    assert table.last(1) == [[table.curves[1][batch][rate][-1] for rate in (0.1, 1.0)] for batch in (128, 256)]


def scheduler(name: str) -> Any:
    schedulers = pytest.importorskip("ray.tune.schedulers")
    if name == "ASHA":
        return schedulers.ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3, **GOAL)
    return schedulers.HyperBandScheduler(max_t=27, reduction_factor=3, **GOAL)


@pytest.mark.parametrize("name", ["ASHA", "HyperBand"])
def test_a_search_spends_its_budget_and_repeats_no_epoch(name: str, table: tuning.Table) -> None:
    source = numpy.random.RandomState(0)
    points = [{"lr": 10 ** source.uniform(-2, 1), "batch": int(source.choice(tuning.BATCHES))} for _ in range(300)]
    found = searches.replay(table, 0, searches.Points(points), scheduler(name), 432)
    assert found.epochs == len(found.best) == 432
    assert found.best == sorted(found.best, reverse=True)
    for trial in found.trials:  # also one that was paused goes on where it was
        assert trial.losses == table.curve(trial.config, 0)[: len(trial.losses)]
    assert found.best[-1] == min(min(trial.losses) for trial in found.trials)
    assert len(found.trials) > 32


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


@pytest.mark.nightly
def test_all_of_it_listens_on_loopback_and_nothing_is_reported(here: Here) -> None:
    import ray

    daemons = ray_here._processes(here.storage.parent)
    assert {"gcs_server", "raylet"} <= {process.name() for process in daemons}
    connections = [connection for process in daemons for connection in process.net_connections()]
    heard = [one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN]
    assert heard and all(ip.removeprefix("::ffff:") == "127.0.0.1" for ip in heard)
    assert here.address.startswith("127.0.0.1:") and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert [node["Resources"]["CPU"] for node in ray.nodes()] == [1.0, 1.0]


@pytest.mark.nightly
def test_replay_decides_as_the_real_controller_does(here: Here, table: tuning.Table) -> None:
    """The same scheduler, settings and curves: once with Ray's processes, one trial at a time, and once replayed."""
    from ray import tune

    settings = [{"lr": rate, "batch": 64} for rate in (10.0, 1.0, 0.01, 0.5, 3.0, 0.1)]
    found = searches.replay(table, 0, searches.Points(settings), scheduler("ASHA"), 10_000)
    curves = {setting["lr"]: table.curve(setting, 0) for setting in settings}

    def trial(config: dict[str, Any]) -> None:
        for loss in curves[config["lr"]]:
            tune.report({"loss": loss})

    results = tune.Tuner(
        trial,
        param_space={"lr": tune.grid_search([setting["lr"] for setting in settings])},
        tune_config=tune.TuneConfig(scheduler=scheduler("ASHA"), max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(name="as_replayed", storage_path=str(here.storage), verbose=0),
    ).fit()
    real = {result.metrics["config"]["lr"]: result.metrics["training_iteration"] for result in results}
    assert real == {trial.config["lr"]: len(trial.losses) for trial in found.trials}
    assert len(set(real.values())) > 1  # some were stopped, some not


@pytest.mark.nightly
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
    same = list(range(5, 21, 5))
    assert [losses["ray"][n] for n in same] == pytest.approx([losses["torchrun"][n] for n in same], rel=1e-4)
    told = (tmp_path / "ray" / "attempts.txt").read_text().splitlines()
    attempt = re.compile(r"2 workers \(processes (\d+), (\d+)\) on 2 nodes begin after step (\d+)")
    *processes, begun = zip(*[attempt.fullmatch(line).groups() for line in told], strict=True)
    assert begun == ("0", "20")  # it did not begin anew
    assert len({one for both in processes for one in both}) == 4  # all workers were started again
    assert losses["ray"][60] < losses["ray"][5] / 2


@pytest.mark.nightly
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
