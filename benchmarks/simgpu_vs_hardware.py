"""Simulated against measured: peak memory and time of training steps.

Predicts ten training steps for one GPU. Where torch finds a CUDA GPU, it also measures them there, side by side, and
prints how far the predictions are off (targets: peak memory within 5 %, time within 15 %).

    python benchmarks/simgpu_vs_hardware.py               predict for this machine's GPU, or for an H200
    python benchmarks/simgpu_vs_hardware.py --gpu A100    predict for another one

With a GPU, the time to launch an operator is first measured, on tiny ones. The GPU itself is simulated as the course
knows it (``simgpu/hardware/kinds.toml``); of one that it does not know, the rates are measured on plain matrix
products and copies: never on the models that are predicted. The prediction runs in a process of its own: C++ knows one
accelerator.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import here
import torch
from torch import nn

from simgpu import hardware
from utils.training import models

MEMORY_TARGET, TIME_TARGET = 0.05, 0.15
LINKS = ("nvlink", "host", "network")  # no part in the steps of one GPU
REPEATS = 10


@dataclass(frozen=True)
class Case:
    """One training step.

    Args:
        name: what the table calls it.
        model: "alexnet", "resnet50", "gpt2" or "gpt1b".
        batch: images or sequences.
        dtype: of parameters and activations.
        checkpointing: recompute activations in backward (GPT only).
    """

    name: str
    model: str
    batch: int
    dtype: torch.dtype
    checkpointing: bool = False


CASES = (
    Case("AlexNet, fp32", "alexnet", 128, torch.float32),
    Case("AlexNet, bf16", "alexnet", 128, torch.bfloat16),
    Case("ResNet-50, fp32", "resnet50", 64, torch.float32),
    Case("ResNet-50, bf16", "resnet50", 64, torch.bfloat16),
    Case("GPT 124M, fp32", "gpt2", 8, torch.float32),
    Case("GPT 124M, bf16", "gpt2", 8, torch.bfloat16),
    Case("GPT 124M, bf16, checkpointing", "gpt2", 8, torch.bfloat16, True),
    Case("GPT 1.3B, bf16", "gpt1b", 4, torch.bfloat16),
    Case("GPT 1.3B, bf16, checkpointing", "gpt1b", 4, torch.bfloat16, True),
    Case("GPT 1.3B, fp32, checkpointing", "gpt1b", 4, torch.float32, True),
)


def make_step(case: Case, device: str) -> Callable[[], None]:
    """The training step of a case on a device: forward, loss, backward, AdamW or SGD with momentum."""
    with torch.device(device):
        if case.model in ("gpt2", "gpt1b"):
            config = models.GPT2_SMALL if case.model == "gpt2" else models.GPT_1B
            model = models.GPT(dataclasses.replace(config, checkpointing=case.checkpointing))
            tokens = torch.zeros(case.batch, config.context, dtype=torch.long)
            inputs: tuple[torch.Tensor, ...] = (tokens, torch.zeros_like(tokens))
        else:
            model = models.AlexNet() if case.model == "alexnet" else models.ResNet50()
            images = torch.zeros(case.batch, 3, 224, 224, dtype=case.dtype)
            inputs = (images, torch.zeros(case.batch, dtype=torch.long))
        model.to(case.dtype)
    kind = torch.optim.AdamW if case.model.startswith("gpt") else torch.optim.SGD
    options = {} if kind is torch.optim.AdamW else {"momentum": 0.9}
    optimizer = kind(model.parameters(), lr=1e-4, **options)

    def step() -> None:
        optimizer.zero_grad()
        loss = (
            model(*inputs) if case.model.startswith("gpt") else nn.functional.cross_entropy(model(inputs[0]), inputs[1])
        )
        loss.backward()
        optimizer.step()

    return step


def predict(gpu: hardware.GPU, launch_s: float) -> list[dict]:
    """Peak bytes and seconds of each case on a simulated GPU."""
    import simgpu

    found = []
    for case in CASES:
        simgpu.cluster(gpus_per_node=1, gpu=gpu, numbers=False, launch_s=launch_s)
        try:
            step = make_step(case, "simgpu:0")
            step()  # the optimizer's state comes with the first step
            torch.simgpu.reset_peak_memory_stats()
            with simgpu.profile() as prof:
                step()
            found.append({"peak": torch.simgpu.max_memory_allocated(), "seconds": prof.elapsed})
        except torch.OutOfMemoryError:
            found.append({"peak": None, "seconds": None})
    return found


def measure() -> list[dict]:
    """Peak bytes and median seconds of each case on the real GPU."""
    found = []
    for case in CASES:
        step = make_step(case, "cuda")
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        found.append({"peak": torch.cuda.max_memory_allocated(), "seconds": statistics.median(times)})
        del step
        torch.cuda.empty_cache()
    return found


def workspace_bytes() -> int:
    """What cuBLAS holds back on the real GPU after a training step; the simulation leaves it out."""
    make_step(CASES[0], "cuda")()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated()


def _cuda_seconds(run: Callable[[], object], repeats: int = 20) -> float:
    for _ in range(3):
        run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def launch_seconds() -> float:
    """What the host needs to launch an operator from Python."""
    small = torch.zeros(1, device="cuda")
    for _ in range(100):  # the first one loads the kernel
        small.add_(1)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(2000):
        small.add_(1)
    took = (time.perf_counter() - began) / 2000
    torch.cuda.synchronize()
    return took


def measured_gpu(name: str) -> dict:
    """Fields of a GPU that the course does not know: what large products and copies reach here, as its peaks."""
    flops = {}
    for kind, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        flops[kind] = 2 * 8192**3 / _cuda_seconds(lambda a=a: a @ a)
    big = torch.empty(2**28, device="cuda")
    other = torch.empty_like(big)
    properties = torch.cuda.get_device_properties()
    return {
        "name": name,
        "memory_bytes": properties.total_memory,
        "memory_bytes_per_s": 2 * big.nbytes / _cuda_seconds(lambda: other.copy_(big)),
        "flops": flops,
        "multiprocessors": properties.multi_processor_count,
        **{
            "achievable_flops": 1.0,
            "achievable_bandwidth": 1.0,
            "achievable_fp32": 1.0,
            "achievable_source": "measured here",
        },
    }


def table(predicted: list[dict], measured: list[dict] | None) -> str:
    """One line for each case."""
    lines = [f"{'training step':34}{'batch':>6}{'peak memory':>14}{'step':>12}"]
    if measured:
        lines[0] += f"{'measured':>14}{'off':>8}{'measured':>12}{'off':>8}"
    for i, (case, ours) in enumerate(zip(CASES, predicted, strict=True)):
        if ours["peak"] is None:
            lines.append(f"{case.name:34}{case.batch:6}   out of memory")
            continue
        text = f"{case.name:34}{case.batch:6}{ours['peak'] / 1e9:11.2f} GB{ours['seconds'] * 1e3:9.1f} ms"
        if measured:
            real = measured[i]
            memory, took = ours["peak"] / real["peak"] - 1, ours["seconds"] / real["seconds"] - 1
            text += f"{real['peak'] / 1e9:11.2f} GB{memory:+8.1%}{real['seconds'] * 1e3:9.1f} ms{took:+8.1%}"
            missed = [
                name
                for name, off, most in (("memory", memory, MEMORY_TARGET), ("time", took, TIME_TARGET))
                if abs(off) > most
            ]
            text += f"   MISSED: {', '.join(missed)}" if missed else ""
        lines.append(text)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpu", help="predict for this kind of GPU (default: the one that is here, else H200)")
    parser.add_argument("--predict", help=argparse.SUPPRESS)  # the child process that simulates
    options = parser.parse_args(arguments)
    if options.predict:
        given = json.loads(options.predict)
        print(json.dumps(predict(dataclasses.replace(hardware.A100, **given["gpu"]), given["launch_s"])))
        return

    real = torch.cuda.is_available() and options.gpu is None
    name = options.gpu or (torch.cuda.get_device_name() if real else "H200")
    facts = here.facts([])
    launch_s = launch_seconds() if real else 10e-6
    try:
        known = hardware.gpu(name)
        gpu = {field.name: getattr(known, field.name) for field in dataclasses.fields(known) if field.name not in LINKS}
    except ValueError:
        if not real:
            raise
        gpu = measured_gpu(name)
    request = json.dumps({"gpu": gpu, "launch_s": launch_s})
    command = [sys.executable, __file__, "--predict", request]
    predicted = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    measured = measure() if real else None

    print(here.header(facts))
    print(f"{'GPU:':14}{gpu['name']}{'' if real else ' (simulated; none is here, so nothing was measured)'}")
    reached = f"{gpu['achievable_flops']:.0%} of the FLOP/s, {gpu['achievable_bandwidth']:.0%} of the bandwidth"
    print(f"{'shares:':14}{reached} ({gpu['achievable_source']})")
    print(f"{'launch:':14}{launch_s * 1e6:.1f} µs per operator ({'measured here' if real else 'assumed'})\n")
    print(table(predicted, measured))
    if measured:
        print(f"\nTargets: peak memory within {MEMORY_TARGET:.0%}, time within {TIME_TARGET:.0%}.")
        held = f"{workspace_bytes() / 1e9:.2f} GB"
        print(f"Measured memory has cuBLAS's workspaces too ({held}) and cuDNN's; the simulation leaves them out.")


if __name__ == "__main__":
    main()
