"""Six trials with Ray Tune that may be killed at any moment: the same folder again, and the experiment goes on.

python scripts/tune_digits.py FOLDER

FOLDER/diary.txt gets a line for each epoch that is computed. It joins the Ray that RAY_ADDRESS names.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import torch
from ray import tune

from lessons.training.tuning import Training

EPOCHS = 9


def trial(config: dict[str, Any]) -> None:
    training = Training(config["lr"], 64)
    if checkpoint := tune.get_checkpoint():  # it was running when the driver died
        with checkpoint.as_directory() as folder:
            training.load_state_dict(torch.load(Path(folder, "state.pt")))
    while training.epochs < EPOCHS:
        [loss] = training.epoch()
        with open(config["diary"], "a") as diary:
            diary.write(f"{config['lr']} {training.epochs}\n")
        time.sleep(config["seconds"])
        with TemporaryDirectory() as folder:
            torch.save(training.state_dict(), Path(folder, "state.pt"))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune a learning rate; start it again after a crash.")
    parser.add_argument("folder", type=Path, help="where the experiment is; it must exist")
    parser.add_argument("--seconds", type=float, default=0.1, help="that an epoch takes longer (default: %(default)s)")
    args = parser.parse_args()
    ray.init(log_to_driver=False, logging_level=logging.ERROR)

    experiment = str(args.folder / "experiment")
    if tune.Tuner.can_restore(experiment):
        tuner = tune.Tuner.restore(experiment, trainable=trial)
    else:
        rates = tune.grid_search([0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
        space = {"lr": rates, "diary": str(args.folder / "diary.txt"), "seconds": args.seconds}
        run = tune.RunConfig(name="experiment", storage_path=str(args.folder), verbose=0)
        few = tune.TuneConfig(reuse_actors=True)  # a process takes the next trial: starting one is the slow part
        tuner = tune.Tuner(trial, param_space=space, tune_config=few, run_config=run)
    results = tuner.fit()
    best = results.get_best_result("loss", "min")
    print(f"{len(results)} trials, {results.num_errors} errors; the best learning rate is {best.config['lr']}")


if __name__ == "__main__":
    main()
