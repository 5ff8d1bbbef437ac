"""The same DDP training by torchrun or by Ray Train: the function ``train`` is the program, the rest starts it.

torchrun --standalone --nproc-per-node 2 scripts/ray_train.py FILE
python scripts/ray_train.py FILE

The second line starts a Ray on this machine, or joins the one that RAY_ADDRESS names: a cluster of many machines.
Losses and weights go to FILE, on a disk that all machines share. See the lecture on Ray and tuning.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from utils.training import same_training
from utils.training.exit import leave


def network() -> nn.Sequential:
    """The network of ``utils.training.same_training``, with its first weights."""
    first, bias_1, second, bias_2 = map(torch.from_numpy, same_training.weights())
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    values = {"0.weight": first.t(), "0.bias": bias_1, "2.weight": second.t(), "2.bias": bias_2}
    model.load_state_dict(values)
    return model


def train(file: Path, losses: list[float] | None = None, start: Any = None, after_step: Any = None) -> None:
    """Train on all ranks of the process group that is there already, and let rank 0 write ``file``.

    Args:
        file: for losses and weights.
        losses, start: of the steps that are done, and the weights then, to go on from there.
        after_step: is called with the losses so far and the model, after every step.
    """
    torch.set_num_threads(1)
    losses = list(losses or [])
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(network())
    if start:
        model.module.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=same_training.LEARNING_RATE)
    batches = same_training.Batches(rank, ranks)
    for step in range(len(losses), same_training.STEPS):
        images, labels = map(torch.from_numpy, batches[step])
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        if after_step:
            after_step(losses, model.module)
    if rank == 0:
        final = [value.detach().t().numpy() for value in model.parameters()]
        same_training.write(file, losses, final, ranks=ranks)


# ---------------------------------------------------------------------- Ray Train
def train_in_ray(config: dict[str, Any]) -> None:
    """What each of Ray's workers runs: ``train``, and a checkpoint every ten steps. Ray has made the process group."""
    import ray
    from ray.train import Checkpoint, get_checkpoint, report

    nodes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, ray.get_runtime_context().get_node_id())
    state: dict[str, Any] = {"losses": [], "model": None}
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
    began = len(state["losses"])

    def after_step(losses: list[float], model: nn.Module) -> None:
        if len(losses) % 10 == 0:
            with tempfile.TemporaryDirectory() as folder:
                saved = None
                if dist.get_rank() == 0:
                    torch.save({"losses": losses, "model": model.state_dict()}, Path(folder, "state.pt"))
                    saved = Checkpoint.from_directory(folder)
                report({"workers": len(nodes), "nodes": len(set(nodes)), "began": began}, checkpoint=saved)
        if len(losses) == config["die_at"] and not began and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    train(Path(config["file"]), state["losses"], state["model"], after_step)


def by_ray(file: Path, workers: int, storage: str | None, die_at: int | None = None) -> Any:
    """Run ``train_in_ray`` on so many workers of the Ray that this process is connected to.

    Args:
        storage: a folder that all machines see, for checkpoints; None: ~/ray_results.
        die_at: in the first attempt, worker 1 is killed after this step.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        train_in_ray,
        train_loop_config={"file": str(file), "die_at": die_at},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
        run_config=RunConfig(name="ray_train", storage_path=storage, failure_config=FailureConfig(max_failures=1)),
    )
    return trainer.fit()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train digits with DDP, started by torchrun or by Ray.")
    parser.add_argument("file", type=Path, help="for losses and weights")
    parser.add_argument("--workers", type=int, default=2, help="of Ray; torchrun has its own (default: %(default)s)")
    parser.add_argument("--storage", help="a folder that all machines see, for Ray's checkpoints")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="with Ray: kill a worker after this step, once")
    args = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("gloo")
        train(args.file)
        leave()
    elif "RAY_ADDRESS" in os.environ:
        import ray

        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        say(by_ray(args.file, args.workers, args.storage, args.die_at))
    else:
        from utils.launchers import ray_here

        with ray_here.running(cpus=args.workers) as here:
            say(by_ray(args.file, args.workers, args.storage or str(here.storage), args.die_at))


def say(result: Any) -> None:
    end = result.metrics
    print(f"{end['workers']} workers on {end['nodes']} nodes; the last attempt went on after step {end['began']}")


if __name__ == "__main__":
    main()
