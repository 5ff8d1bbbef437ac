"""Training steps and all-reduces, measured on ranks with real GPUs, or simulated: the same code for both.

``measure_step`` and ``measure_all_reduce`` run on ranks. ``simulate`` runs wherever torch is one that ``simgpu`` takes,
and ``predict`` calls it in a process of its own, for C++ knows one accelerator a process.

    python benchmarks/steps.py REQUEST     what ``predict`` starts: the request and the answer are JSON
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import here  # noqa: F401 (the course is found from then on)
import torch
import torch.distributed as dist
from torch import nn

from utils.training import models

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GPTS = {
    "GPT 124M": models.GPT2_SMALL,
    "GPT 350M": dataclasses.replace(models.GPT2_SMALL, layers=24, heads=16, width=1024),
    "GPT 1.3B": models.GPT_1B,
    "tiny GPT": models.GPTConfig(layers=2, heads=2, width=64, vocabulary=512, context=64),
}
IMAGES = {"ResNet-50": (3, 4, 6, 3), "tiny ResNet": (1, 1, 1, 1)}
LARGE_CARD = 20e9
"""Bytes of memory from which on GPT 1.3B is measured: it takes 13.2 GB."""
MOST_STEPS, MOST_SECONDS = 10, 8.0


@dataclass(frozen=True)
class Program:
    """One training step: forward, loss, backward, AdamW (GPTs) or SGD with momentum.

    Args:
        model: a key of ``GPTS`` or ``IMAGES``, or "AlexNet".
        batch: images or sequences of each GPU.
        dtype: of parameters and activations, a key of ``DTYPES``.
        checkpointing: recompute activations in backward (GPTs only).
        parallel: "" (one GPU), "DDP" or "FSDP2".
        gpus: how many.
    """

    model: str
    batch: int
    dtype: str
    checkpointing: bool = False
    parallel: str = ""
    gpus: int = 1

    @property
    def name(self) -> str:
        """What tables call it: "GPT 1.3B, bf16, checkpointing, FSDP2"."""
        words = [self.model, self.dtype, "checkpointing" if self.checkpointing else "", self.parallel]
        return ", ".join(filter(None, words))


def five_programs(gpus: int, memory_bytes: int, half: str) -> list[Program]:
    """What is measured: three programs on one GPU, DDP and FSDP2 on all. Without a GPU, tiny ones on two CPU ranks.

    Args:
        gpus: how many there are; 0: a rehearsal.
        memory_bytes: of one GPU.
        half: "bf16", or "fp16" on GPUs older than Ampere, which only emulate bf16.
    """
    if not gpus:
        image, gpt, large, half, batches, gpus = "tiny ResNet", "tiny GPT", "tiny GPT", "fp32", (4, 4, 2), 2
    else:
        large = "GPT 1.3B" if memory_bytes >= LARGE_CARD else "GPT 350M"
        image, gpt, batches = "ResNet-50", "GPT 124M", (64, 8, 4)
    return [
        Program(image, batches[0], "fp32"),
        Program(gpt, batches[1], half),
        Program(large, batches[2], half, checkpointing=True),
        Program(image, batches[0], half, parallel="DDP", gpus=gpus),
        Program(large, batches[2], half, checkpointing=True, parallel="FSDP2", gpus=gpus),
    ]


def make_step(program: Program, device: str) -> Callable[[], None]:
    """The training step of a program on a device, simulated or not. DDP and FSDP2 need a process group."""
    dtype, is_gpt = DTYPES[program.dtype], program.model in GPTS
    model: nn.Module
    with torch.device(device):
        if is_gpt:
            config = dataclasses.replace(GPTS[program.model], checkpointing=program.checkpointing)
            model = models.GPT(config)
            tokens = torch.zeros(program.batch, config.context, dtype=torch.long)
            inputs: tuple[torch.Tensor, ...] = (tokens, torch.zeros_like(tokens))
        else:
            model = models.AlexNet() if program.model == "AlexNet" else models.ResNet50(blocks=IMAGES[program.model])
            side = 32 if program.model == "tiny ResNet" else 224
            images = torch.zeros(program.batch, 3, side, side, dtype=dtype)
            inputs = (images, torch.zeros(program.batch, dtype=torch.long))
        model.to(dtype)
    if program.parallel == "DDP":
        model = nn.parallel.DistributedDataParallel(model)
    elif program.parallel == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    kind, options = (torch.optim.AdamW, {}) if is_gpt else (torch.optim.SGD, {"momentum": 0.9})
    optimizer = kind(model.parameters(), lr=1e-4, **options)  # type: ignore[operator]

    def step() -> None:
        optimizer.zero_grad()
        loss = model(*inputs) if is_gpt else nn.functional.cross_entropy(model(inputs[0]), inputs[1])
        loss.backward()
        optimizer.step()

    return step


# --- On ranks -----------------------------------------------------------------------------------------------


def my_device() -> str:
    """Of this rank: its GPU, or the CPU (a rank on the CPU sees no GPU)."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _seconds(run: Callable[[], object], most: int, limit_s: float, alone: bool) -> list[float]:
    """Seconds of each of several runs, as many on every rank, after three that are not counted."""
    for _ in range(3):
        began = time.perf_counter()
        run()
        synchronize()
        took = torch.tensor([time.perf_counter() - began], device=my_device())
    if not alone:
        dist.all_reduce(took, dist.ReduceOp.MAX)
    found = []
    for _ in range(max(2, min(most, int(limit_s / took.item())))):
        began = time.perf_counter()
        run()
        synchronize()
        found.append(time.perf_counter() - began)
    return found


def measure_step(program: Program) -> dict[str, float | None]:
    """Median seconds of a step, and the peak of memory in bytes (None on a CPU)."""
    step, real = make_step(program, my_device()), torch.cuda.is_available()
    step()  # the optimizer's state comes with the first one
    if real:
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(_seconds(step, MOST_STEPS, MOST_SECONDS, alone=program.gpus == 1))
    return {"seconds": seconds, "peak_bytes": torch.cuda.max_memory_allocated() if real else None}


def measure_all_reduce(sizes: Sequence[int]) -> list[float]:
    """Seconds of an all-reduce of each size in bytes, as nccl-tests measures: many, one behind the other."""
    found = []
    for nbytes in sizes:
        tensor = torch.zeros(nbytes // 4, device=my_device())
        repeats = 20 if nbytes <= 2**24 else 5

        def many(tensor: torch.Tensor = tensor, repeats: int = repeats) -> None:
            for _ in range(repeats):
                dist.all_reduce(tensor)

        found.append(statistics.median(_seconds(many, 5, 2.0, alone=False)) / repeats)
    return found


# --- Simulated ----------------------------------------------------------------------------------------------


def simulated_gpu(about: dict[str, Any]) -> Any:
    """The GPU as the course knows it; else with the rates that were measured on it, of plain products and copies.

    Args:
        about: a results file's ``machine``.
    """
    from simgpu import hardware

    try:
        return hardware.gpu(about["gpu"])
    except ValueError:
        if "flops" not in about:
            raise
    shares = dict.fromkeys(("achievable_flops", "achievable_bandwidth", "achievable_fp32"), 1.0)
    return dataclasses.replace(
        hardware.A100,
        name=about["gpu"],
        memory_bytes=about["memory_bytes"],
        memory_bytes_per_s=about["memory_bytes_per_s"],
        flops=about["flops"],
        multiprocessors=about["multiprocessors"],
        board_power=0.0,
        nvlink=hardware.A100.nvlink if about.get("links", "").startswith("NVLink") else None,
        achievable_source="measured on it",
        **shares,
    )


def simulate(gpu: Any, programs: Sequence[Program], sizes: Sequence[int], ranks: int, launch_s: float) -> dict:
    """``steps``: seconds and peak bytes of each program (None: out of memory); ``all_reduce``: seconds of each size."""
    import simgpu

    steps: list[dict[str, float | None]] = []
    for program in programs:
        with simgpu.one_of(program.gpus, gpu, nodes=1, launch_s=launch_s):
            try:
                step = make_step(program, "simgpu:0")
                step()
                step()  # DDP makes its buckets anew, and the optimizer's state comes, with the first one
                torch.simgpu.reset_peak_memory_stats()  # type: ignore[attr-defined]
                with simgpu.profile() as prof:
                    step()
                peak = torch.simgpu.max_memory_allocated()  # type: ignore[attr-defined]
                steps.append({"seconds": prof.elapsed, "peak_bytes": peak})
            except torch.OutOfMemoryError:
                steps.append({"seconds": None, "peak_bytes": None})
    seconds = []
    for nbytes in sizes if ranks > 1 else ():
        with simgpu.one_of(ranks, gpu, nodes=1, launch_s=0):
            tensor = torch.zeros(nbytes // 4, device="simgpu:0")
            dist.all_reduce(tensor)
            with simgpu.profile() as prof:
                dist.all_reduce(tensor)
            seconds.append(prof.elapsed)
    return {"steps": steps, "all_reduce": seconds}


def predict(machine: dict[str, Any], programs: Sequence[Program], sizes: Sequence[int], ranks: int) -> dict | str:
    """What ``simulate`` gives, in a process of its own; a sentence where this torch is one that ``simgpu`` refuses."""
    request = {"machine": machine, "programs": [*map(dataclasses.asdict, programs)], "sizes": [*sizes], "ranks": ranks}
    command = [sys.executable, __file__, json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["The simulation ended without a word."])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def main(request: str) -> int:
    """Answer one request of ``predict``."""
    given = json.loads(request)
    programs = [Program(**each) for each in given["programs"]]
    try:
        gpu = simulated_gpu(given["machine"])
        launch_s = given["machine"].get("launch_s") or 10e-6
        print(json.dumps(simulate(gpu, programs, given["sizes"], given["ranks"], launch_s)))
    except (ImportError, ValueError) as error:
        print(str(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
