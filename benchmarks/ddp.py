"""How fast is the course's DDP (lessons/algorithms/ddp.py, all in Python) beside torch's DistributedDataParallel?

A training step, forward and backward pass and optimizer, on two and on four ranks, for two models: one with a few large
layers, and one with 161 small parameters and the buffers of BatchNorm. Default bucket sizes. All take the same steps in
every round, in turns (paired runs): ours, torch's, and torch's with ``gradient_as_bucket_view=True``, which keeps
gradients in the buckets as ours does. Target: our step takes at most 1.10 times as long as torch's.

    python benchmarks/ddp.py            about two minutes on two cores
    python benchmarks/ddp.py --quick    two rounds with small models, to see that it works
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import cloudpickle
import here

import utils

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RANKS = (2, 4)
ROUNDS, QUICK_ROUNDS = 30, 2
MODELS = {
    "MLP": "5 layers of 1024 × 1024: 21 MB in 10 parameters",
    "ResNet": "50 layers with 8 to 256 channels: 1.5 MB in 161 parameters, 159 buffers",
}
TORCHS = {"torch": {}, "torch, bucket view": {"gradient_as_bucket_view": True}}
TARGET = 1.10


def measure(which: str, rounds: int, small: bool) -> dict[str, list[float]]:
    """On every rank: seconds of each contestant's step in each round, as the slowest rank saw them."""
    import copy
    import time

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from lessons.algorithms.ddp import BucketedDDP

    class Bottleneck(nn.Module):
        """ResNet's block: 1 × 1, 3 × 3 and 1 × 1 convolutions, each with BatchNorm, and a way around them."""

        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
                *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
                *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
            )
            self.around = nn.Sequential()
            if stride > 1 or channels != 4 * width:
                shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
                self.around = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.around(x))

    def resnet() -> nn.Module:
        parts: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
        channels = 8
        for stage, blocks in enumerate((1, 1) if small else (3, 4, 6, 3)):
            for block in range(blocks):
                width = 8 << stage
                parts.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = 4 * width
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))

    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    if which == "MLP":
        width = 64 if small else 1024
        model: nn.Module = nn.Sequential(*(nn.Linear(width, width) for _ in range(5)))
        batch = torch.randn(128, width)
    else:
        model, batch = resnet(), torch.randn(8, 3, 32, 32)
    ddps: dict[str, nn.Module] = {"ours": BucketedDDP(copy.deepcopy(model))}
    ddps |= {name: DistributedDataParallel(copy.deepcopy(model), **options) for name, options in TORCHS.items()}
    optimizers = {name: torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9) for name, ddp in ddps.items()}
    times: dict[str, list[float]] = {name: [] for name in ddps}
    for number in range(-3, rounds):  # three are not counted: buckets are planned anew, memory is taken
        for name in list(ddps)[:: 1 if number % 2 else -1]:
            dist.barrier()
            began = time.perf_counter()
            optimizers[name].zero_grad()
            ddps[name](batch).square().mean().backward()
            optimizers[name].step()
            took = torch.tensor([time.perf_counter() - began])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if number >= 0:
                times[name].append(took.item())
    return times


def measure_all(rounds: int, small: bool) -> dict[str, dict[str, list[float]]]:
    """On every rank: :func:`measure` for each model."""
    return {which: measure(which, rounds, small) for which in MODELS}


def line(which: str, ranks: int, name: str, times: dict[str, list[float]]) -> str:
    """One figure of the report."""
    ours, theirs = times["ours"], times[name]
    ratio = statistics.median(ours) / statistics.median(theirs)
    paired = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    quarters = statistics.quantiles(paired, n=4)
    medians = f"{statistics.median(ours) * 1e3:7.1f} : {statistics.median(theirs) * 1e3:7.1f} ms"
    verdict = f"target ≤ {TARGET:.2f}: {'met' if ratio <= TARGET else 'MISSED'}"
    spread = f"(paired: median {quarters[1]:.2f}, middle half {quarters[0]:.2f}–{quarters[2]:.2f})"
    return f"{which:7} {ranks} ranks  {name:19}{medians}   ratio {ratio:.2f} {spread}   {verdict}"


def main(arguments: Sequence[str] | None = None) -> None:
    rounds, last_words = here.begin(__doc__, ROUNDS, QUICK_ROUNDS, arguments)
    for name, words in MODELS.items():
        print(f"{name + ':':14}{words}")
    print(f"paired runs:  {rounds} rounds, gloo ranks with one thread each, float32, SGD with momentum; ours : torch's")
    print("ratio:        median of our steps over median of torch's (and of the pairs of each round)\n")
    for ranks in RANKS:
        of_models = utils.launch(
            measure_all, rounds, rounds < ROUNDS, ranks=ranks, backend="gloo", timeout=900, show_output=False
        )
        for which, times in of_models[0].items():
            for name in TORCHS:
                print(line(which, ranks, name, times), flush=True)
    print(last_words, end="")


if __name__ == "__main__":
    main()
