"""What do simulated GPUs cost on this computer?

Three figures, each a ratio of medians of paired runs (both are measured in every round, in turns):

- numbers=True: a training step of ResNet-50 on one simulated GPU beside the same step on the plain CPU (target 1.05);
- numbers=False: the same step, shapes only, beside torch's own FakeTensorMode (target 0.3);
- more GPUs: cost per operator with 1,024 simulated GPUs beside 2 (target 1.3).

And what the simulation assumes of the host: how much of a launch is Python's, and holds the GIL.

    python benchmarks/simgpu_overhead.py            about five minutes on two cores
    python benchmarks/simgpu_overhead.py --quick    one round, small images and 16 GPUs at most, to see that it works
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import here
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import simgpu
from utils.training.models import ResNet50

ROUNDS, QUICK_ROUNDS = 7, 1
GPU_COUNTS, QUICK_GPU_COUNTS = (2, 64, 1024), (2, 16)


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> None:
    """One step: forward, loss, backward, update."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def resnet_step(device: str, batch: int, size: int) -> Callable[[], None]:
    """A training step of ResNet-50 that can be repeated."""
    with torch.device(device):
        model = ResNet50()
        images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return lambda: training_step(model, optimizer, images, labels)


def seconds(run: Callable[[], None]) -> float:
    """How long one run takes."""
    gc.collect()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def paired(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> tuple[list[float], list[float]]:
    """Times of both, measured in turns; the first runs are not counted."""
    ours(), theirs()
    if rounds > 1:
        ours()
    mine, other = [], []
    for number in range(rounds):
        for run, times in ((ours, mine), (theirs, other))[:: 1 if number % 2 else -1]:
            times.append(seconds(run))
    return mine, other


def with_numbers(rounds: int, batch: int, size: int) -> tuple[list[float], list[float]]:
    """A step on a simulated GPU with numbers, and on the CPU."""
    simgpu.cluster(gpus_per_node=1)
    return paired(resnet_step("simgpu:0", batch, size), resnet_step("cpu", batch, size), rounds)


def shapes_only(rounds: int, batch: int, size: int) -> tuple[list[float], list[float]]:
    """A step on a simulated GPU without numbers, and under FakeTensorMode."""
    simgpu.cluster(gpus_per_node=1, numbers=False)
    mode = FakeTensorMode()
    with mode:
        fake = resnet_step("cpu", batch, size)

    def in_mode() -> None:
        with mode:
            fake()

    return paired(resnet_step("simgpu:0", batch, size), in_mode, rounds)


def per_operator(gpus: int) -> Callable[[], float]:
    """Seconds per operator when every one of ``gpus`` simulated GPUs trains a small model for one step."""
    cluster = simgpu.cluster(nodes=max(1, gpus // 8), gpus_per_node=min(gpus, 8), numbers=False)
    steps = []
    for gpu in range(len(cluster)):
        with simgpu.on(gpu), torch.device("simgpu"):
            model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
            steps.append((gpu, model, optimizer, torch.empty(32, 64), torch.empty(32, dtype=torch.long)))

    def run() -> float:
        with simgpu.profile() as prof:
            began = time.perf_counter()
            for gpu, *step in steps:
                with simgpu.on(gpu):
                    training_step(*step)
            took = time.perf_counter() - began
        return took / len(prof.events)

    return run


def growth(rounds: int, counts: Sequence[int]) -> dict[int, list[float]]:
    """Seconds per operator for each number of GPUs. (A new cluster replaces the last, so sizes take turns by round.)"""
    found: dict[int, list[float]] = {gpus: [] for gpus in counts}
    for _ in range(rounds):
        for gpus, times in found.items():
            run = per_operator(gpus)
            run()
            gc.collect()
            repeats = max(counts) // gpus  # the same number of operators for each size
            times.append(statistics.fmean(run() for _ in range(repeats)))
    return found


def launch_parts(rounds: int) -> tuple[float, float]:
    """Seconds that a small module takes in Python alone (its operator does nothing), and in all."""
    kinds = {"linear": nn.Linear(64, 64), "layer_norm": nn.LayerNorm(64), "relu": nn.ReLU()}
    model = nn.Sequential(*list(kinds.values()) * 10)
    x, repeats = torch.randn(4, 64), 200
    originals = {name: getattr(nn.functional, name) for name in kinds}

    def each() -> float:
        began = time.perf_counter()
        for _ in range(repeats):
            model(x)
        return (time.perf_counter() - began) / repeats / len(model)

    found: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for _ in range(rounds + 1):
            try:
                for name in originals:
                    setattr(nn.functional, name, lambda x, *_args, **_options: x)
                found[0].append(each())
            finally:
                for name, original in originals.items():
                    setattr(nn.functional, name, original)
            found[1].append(each())
    return statistics.median(found[0][1:]), statistics.median(found[1][1:])


def line(name: str, ours: Sequence[float], theirs: Sequence[float], target: float, unit: float, unit_name: str) -> str:
    """One figure of the report."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ours) / statistics.median(theirs)
    verdict = "met" if ratio <= target else "MISSED"
    medians = f"{statistics.median(ours) * unit:8.2f} : {statistics.median(theirs) * unit:8.2f} {unit_name}"
    return f"{name:58}{medians}   ratio {ratio:.3f} ({min(each):.3f}–{max(each):.3f})   target {target:g}: {verdict}"


def main(arguments: Sequence[str] | None = None) -> None:
    rounds, note = here.begin(__doc__, ROUNDS, QUICK_ROUNDS, arguments)
    batch, size, counts = (2, 32, QUICK_GPU_COUNTS) if note else (8, 224, GPU_COUNTS)
    torch.manual_seed(0)
    print(f"paired runs:  {rounds} rounds; ResNet-50, batch {batch}, {size}×{size} images; medians, ours : the other\n")
    ours, theirs = with_numbers(rounds, batch, size)
    print(line("numbers=True, beside the plain CPU", ours, theirs, 1.05, 1e3, "ms"))
    sys.stdout.flush()
    ours, theirs = shapes_only(rounds, batch, size)
    print(line("numbers=False, beside FakeTensorMode", ours, theirs, 0.3, 1e3, "ms"))
    costs = growth(rounds, counts)
    fewest, *_, most = counts
    name = f"cost per operator, {most} GPUs beside {fewest}"
    print(line(name, costs[most], costs[fewest], 1.3, 1e6, "µs"))
    every = ", ".join(f"{gpus}: {statistics.median(times) * 1e6:.1f} µs" for gpus, times in costs.items())
    print(f"cost per operator by number of GPUs: {every}")
    python_s, whole_s = launch_parts(rounds)
    print(
        f"a small operator in a module, on the CPU: {whole_s * 1e6:.1f} µs, of which Python's {python_s * 1e6:.1f} µs"
    )
    print(note, end="")


if __name__ == "__main__":
    main()
