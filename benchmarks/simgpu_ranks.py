"""What does a simulated GPU for every rank cost on this computer?

- A training step of a small GPT under FSDP2 on 4 ranks with simulated GPUs, with numbers, beside the same on plain gloo
  ranks (target 1.5). Ratio of medians of paired runs: both worlds wait there, and take turns.
- Memory of such a rank process, forked, with a tensor on its GPU: what it alone holds, and its part of what it shares
  (target 130 MB); and after training, beside a plain rank.
- One of 512 GPUs alone (``simgpu.one_of``) beside one of 8: the same step, shapes only (target 1.3).

    python benchmarks/simgpu_ranks.py            about a minute on two cores
    python benchmarks/simgpu_ranks.py --quick    one round, to see that it works
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import here
import torch
from simgpu_overhead import line
from torch.distributed.fsdp import fully_shard

import simgpu
from utils.ranks import World
from utils.training import models
from utils.training.models import GPTConfig

ROUNDS, QUICK_ROUNDS = 7, 1
RANKS = 4
DEVICES = {"module": "simgpu.ranks.cells", "gpu": "H100", "network": "", "shapes": False}
CONFIG = GPTConfig(layers=4, heads=4, width=256, vocabulary=4096, context=256)
BATCH = 4
TRAINING = f"""
import time
from torch.distributed.fsdp import fully_shard
from utils.training import models
from utils.training.models import GPTConfig

torch.manual_seed(0)
net = models.GPT({CONFIG!r})
for block in net.blocks:
    fully_shard(block)
fully_shard(net)
net.to(device)
optimizer = torch.optim.AdamW(net.parameters())
tokens = torch.randint(0, {CONFIG.vocabulary}, ({BATCH}, {CONFIG.context})).to(device)

def step():
    optimizer.zero_grad()
    loss = net(tokens, tokens)
    loss.backward()
    optimizer.step()
    return loss.item()

losses = [step() for _ in range(3)]
"""
TIMED = "dist.barrier(); began = time.perf_counter(); step(); dist.barrier(); time.perf_counter() - began"


def with_numbers(rounds: int) -> tuple[list[float], list[float], list[list[float]]]:
    """Seconds of a step on simulated GPUs and on plain ranks.

    And megabytes of each rank: forked, with a tensor on a simulated GPU; after training; plain, after training.
    """
    with World(RANKS, devices=DEVICES) as ours, World(RANKS, backend="gloo") as plain:
        ours.run_cell("dist.all_reduce(torch.ones(1, device=device))")
        memory = [[megabytes(pid) for pid in ours.pids]]
        for world in ours, plain:
            world.run_cell(TRAINING)
        losses = [world.run_cell("[round(loss, 4) for loss in losses]")[0] for world in (ours, plain)]
        if losses[0] != losses[1]:
            raise RuntimeError(f"the two worlds do not train alike: {losses}")
        found: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for world, times in ((ours, found[0]), (plain, found[1]))[:: 1 if number % 2 else -1]:
                times.append(max(float(value) for value in world.run_cell(TIMED).values()))
        memory += [[megabytes(pid) for pid in world.pids] for world in (ours, plain)]
        return *found, memory


def megabytes(pid: int) -> float:
    """What a process holds of memory; of pages that it shares with others, its part."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(row.split()[1]) for row in file if row.startswith("Pss:")) * 1024 / 1e6


def alone(gpus: int) -> Callable[[], float]:
    """Seconds of the processor for a step of one of so many GPUs, shapes only. (Nobody is waited for.)"""

    def run() -> float:
        with simgpu.one_of(gpus):
            with torch.device("simgpu"):
                net = models.GPT(CONFIG)
                tokens = torch.zeros(BATCH, CONFIG.context, dtype=torch.long)
            for block in net.blocks:
                fully_shard(block)
            fully_shard(net)
            optimizer = torch.optim.AdamW(net.parameters())

            def step() -> None:
                optimizer.zero_grad()
                net(tokens, tokens).backward()
                optimizer.step()

            step()
            began = time.process_time()
            for _ in range(3):
                step()
            return (time.process_time() - began) / 3

    return run


def growth(rounds: int, few: int, many: int) -> tuple[list[float], list[float]]:
    """Seconds of a step alone, of many and of few, in turns."""
    found: dict[int, list[float]] = {many: [], few: []}
    alone(few)()
    for number in range(rounds):
        for gpus in (many, few)[:: 1 if number % 2 else -1]:
            found[gpus].append(alone(gpus)())
    return found[many], found[few]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every figure."""
    rounds, note = here.begin(__doc__, ROUNDS, QUICK_ROUNDS, arguments)
    print(f"paired runs:  {rounds} rounds; {CONFIG.layers} blocks of width {CONFIG.width}; medians, ours : the other\n")
    ours, plain, memory = with_numbers(rounds)
    print(line(f"FSDP2, {RANKS} simulated ranks beside plain ones", ours, plain, 1.5, 1e3, "ms"))
    sys.stdout.flush()
    forked, trained, without = map(max, memory)
    print(
        f"largest rank process: forked {forked:.0f} MB (target 130: {'met' if forked <= 130 else 'MISSED'}), ", end=""
    )
    print(f"after training {trained:.0f} MB, without simulated GPUs {without:.0f} MB")
    print(line("a step of one of 512 GPUs beside one of 8, shapes only", *growth(rounds, 8, 512), 1.3, 1e3, "ms"))
    print(note, end="")


if __name__ == "__main__":
    main()
