"""Runs scripts/train.py, as it is, with Ray Train: Ray starts the workers, and starts them anew when one has died.

python scripts/ray_train.py --workers 2 --folder runs/first --steps 200

It takes the options of train.py, and joins the Ray that RAY_ADDRESS names (a cluster of many machines); without one it
starts a Ray on this machine. The folder is one that all machines see: train.py keeps its checkpoints there itself, and
goes on after the last. Where Ray has a GPU for each worker, each gets one, and the backend is NCCL.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import train  # the file beside this one


def train_in_ray(words: dict[str, Any]) -> None:
    """What each of Ray's workers runs. Ray has made the process group already, and train.py uses the one it finds."""
    import ray
    import torch.distributed as dist

    args = train.options(words["train"])
    workers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(workers, (ray.get_runtime_context().get_node_id(), os.getpid()))
    began = done(args.folder)
    if dist.get_rank() == 0:
        nodes, processes = (set(of_all) for of_all in zip(*workers, strict=True))
        who = f"{len(workers)} workers (processes {', '.join(map(str, sorted(processes)))})"
        with open(Path(args.folder, "attempts.txt"), "a", encoding="utf-8") as file:
            print(f"{who} on {len(nodes)} nodes begin after step {began}", file=file)
    if words["kill_after"] and not began and dist.get_rank() == 1:
        train.loss_of = until(words["kill_after"], train.loss_of)
    train.main(args)


def done(folder: str) -> int:
    """How many steps have been saved."""
    lines = Path(folder, "losses.jsonl").read_text().splitlines() if Path(folder, "losses.jsonl").exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def until(step: int, loss_of: Callable[..., Any]) -> Callable[..., Any]:
    """A loss that can be computed so many times; at the next one this process is killed, as by an accident."""
    left = iter(range(step))

    def limited(*args: Any) -> Any:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss_of(*args)

    return limited


def by_ray(words: list[str], workers: int, kill_after: int = 0) -> None:
    """Train on so many workers of the Ray that this process is connected to; one failure is forgiven."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    gpus = ray.cluster_resources().get("GPU", 0) >= workers
    folder = Path(train.options(words).folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    trainer = TorchTrainer(
        train_in_ray,
        train_loop_config={"train": [*words, "--folder", str(folder)], "kill_after": kill_after},
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus, placement_strategy="SPREAD"),
        run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=1)),
    )
    trainer.fit()
    print(Path(folder, "attempts.txt").read_text(), end="")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run scripts/train.py with Ray Train; other options are train.py's.")
    parser.add_argument("--workers", type=int, default=2, help="so many ranks (default: %(default)s)")
    parser.add_argument("--kill-after", type=int, default=0, metavar="STEP", help="kill worker 1 once, after this step")
    args, words = parser.parse_known_args()
    train.options(words)  # so that a mistake is told before a Ray is started
    import ray

    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    else:
        ray.init(num_cpus=args.workers, include_dashboard=False)
    by_ray(words, args.workers, args.kill_after)


if __name__ == "__main__":
    main()
