"""The GPUs of this machine beside simulated ones: training steps, all-reduces, a straggler, a hang; one small file.

    python benchmarks/your_gpus.py        all of it, into your_gpus.json; docs/your_gpus.ipynb does the same

Everything runs on ranks of ``utils``: under NCCL where there are GPUs enough, else under gloo on the CPU. Without a GPU
all of it is a rehearsal: tiny models on the CPU, simulated for an H100, so that what runs is seen and no figure counts.
``FIELDS`` says what the file holds: no names of people or machines, no paths, no serial numbers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import steps
import torch
import torch.distributed as dist
from here import ROOT
from steps import Program

import utils
from utils.hardware import nvml
from utils.ranks import RankError, RankTimeout, World
from utils.ranks.output import text_table

FILE = Path("your_gpus.json")
MOST_BYTES = 20_000
SIZES = tuple(2**power for power in range(16, 31, 2))
SMALL_SIZES = tuple(2**power for power in range(12, 19, 2))
SLEEP_S, LATE_STEP, STEPS = 0.2, 2, 5

FIELDS = {
    "form": "1: what this list describes",
    "date": "day of the measurement, UTC",
    "course": "version of the course that measured and predicted",
    "rehearsal": "true: no GPU was there, and no figure counts",
    "machine": "gpus (how many), gpu (as torch names it), memory_bytes and multiprocessors of one, links between them, "
    "half (the type of two bytes that is measured), driver, cuda, nccl, torch, python, cpus; power_limit_w and max_mhz "
    "(NVML); measured: launch_s (an operator, on the host), flops (large products, by type), memory_bytes_per_s (copy)",
    "steps": "for each program (fields of steps.Program): seconds (median) and peak_bytes; simulated: the same; error: "
    "why there are none",
    "all_reduce": "backend, ranks, sizes (bytes), seconds; simulated: seconds",
    "straggler": "backend, rank that slept for sleep_s before step late_step; spans: for each rank, begin and length "
    "of the all-reduce of each step in ms, by its torch.profiler, from an earlier one's end on",
    "hang": "backend, seconds until the report, and the report",
    "tests": "by `make test-gpu`: how each part ended, and which tests failed",
    "note": "anything else, in words",
}


# --- The machine --------------------------------------------------------------------------------------------


def look() -> dict[str, Any]:
    """The field ``machine``. Rates are measured on a rank, so that this process never touches CUDA."""
    found = nvml.count_gpus()
    gpus = found.count if torch.version.cuda else 0
    links = nvml.describe_interconnect(nvml.interconnect()) if gpus > 1 else ""
    machine = {"gpus": gpus, "links": links, "torch": torch.__version__, "python": platform.python_version()}
    machine |= {"cpus": os.cpu_count(), **_limits()} if gpus else {"gpu": "H100", "note": found.note}
    return machine | (utils.launch(rates, ranks=1, timeout=120)[0] if gpus else {})


def _limits() -> dict[str, Any]:
    """What NVML says of the first GPU's power and clock."""
    import pynvml

    found: dict[str, Any] = {"driver": nvml.gpus()[0].driver}
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        found["power_limit_w"] = pynvml.nvmlDeviceGetPowerManagementLimit(gpu) // 1000
        found["max_mhz"] = pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError:  # some cards do not tell
        pass
    return found


def rates() -> dict[str, Any]:
    """On a rank: what torch says of its GPU, the host's time for an operator, what plain products and copies reach."""
    properties = torch.cuda.get_device_properties()
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "half": "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp16",
    }
    small = torch.zeros(1, device="cuda")
    # (A hundred first: the first one loads the kernel.)
    for count in (100, 2000):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            small.add_(1)
        found["launch_s"] = (time.perf_counter() - began) / count
    found["flops"] = {}
    for kind in dict.fromkeys(("fp32", "fp16", found["half"])):
        a = torch.randn(8192, 8192, device="cuda").to(steps.DTYPES[kind])
        found["flops"][kind] = 2 * 8192**3 / _cuda_seconds(lambda a=a: a @ a)
    one, other = torch.empty(2**28, device="cuda"), torch.empty(2**28, device="cuda")
    found["memory_bytes_per_s"] = 2 * one.nbytes / _cuda_seconds(lambda: other.copy_(one))
    return found


def _cuda_seconds(run: Any, repeats: int = 10) -> float:
    for count in (2, repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


# --- What is measured ---------------------------------------------------------------------------------------


def programs(machine: dict[str, Any]) -> list[Program]:
    """The five programs for this machine."""
    return steps.five_programs(machine["gpus"], machine.get("memory_bytes", 0), machine.get("half", "fp32"))


def sizes(machine: dict[str, Any]) -> tuple[int, ...]:
    """Bytes of the all-reduces."""
    return SIZES if machine["gpus"] > 1 else SMALL_SIZES


def ranks(machine: dict[str, Any]) -> int:
    """A rank for each GPU; two on the CPU where there are fewer than two, as one alone has nobody to wait for."""
    return max(2, machine["gpus"])


def backend(machine: dict[str, Any]) -> str:
    """Of collectives between these ranks."""
    return "nccl" if machine["gpus"] > 1 else "gloo"


def predict(machine: dict[str, Any]) -> dict[str, Any] | str:
    """Simulated steps and all-reduces; or the sentence why this torch cannot simulate them."""
    return steps.predict(machine, programs(machine), sizes(machine), machine["gpus"] or 2)


def measure_steps(machine: dict[str, Any]) -> list[dict[str, Any]]:
    """The field ``steps``, without what is simulated. Each program has ranks of its own, so memory is empty for it."""
    found = []
    for program in programs(machine):
        row: dict[str, Any] = {"program": dataclasses.asdict(program)}
        try:
            row |= utils.launch(steps.measure_step, program, ranks=program.gpus, timeout=180)[0]
        except RankError as error:  # (a time-out is one, too)
            memory = "OutOfMemoryError" in f"{error!r} {error} {getattr(error, 'failures', '')}"
            row["error"] = "out of memory" if memory else type(error).__name__
        found.append(row)
    return found


def measure_all_reduce(machine: dict[str, Any]) -> dict[str, Any]:
    """The field ``all_reduce``, without what is simulated."""
    of = {"backend": backend(machine), "ranks": ranks(machine), "sizes": sizes(machine)}
    every = utils.launch(steps.measure_all_reduce, of["sizes"], ranks=of["ranks"], timeout=180)
    return of | {"seconds": [max(each) for each in zip(*every, strict=True)]}


def straggler(machine: dict[str, Any]) -> dict[str, Any]:
    """The field ``straggler``: the last rank sleeps before one step; how long everybody's all-reduces then take."""
    spans = utils.launch(profiled_steps, ranks=ranks(machine), timeout=120, show_output=False)
    late = {"backend": backend(machine), "rank": len(spans) - 1, "sleep_s": SLEEP_S, "late_step": LATE_STEP}
    return late | {"spans": spans}


def profiled_steps() -> list[tuple[float, float]]:
    """On a rank: begin and length, in milliseconds, of the all-reduce of each step, by torch.profiler."""
    from torch.profiler import ProfilerActivity, profile

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    device = steps.my_device()
    matrix, gradient = torch.randn(1024, 1024, device=device), torch.zeros(2**20, device=device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as prof:
        for step in range(-2, STEPS):  # (the first two connect the ranks, and wait until every profiler has begun)
            if (rank, step) == (last, LATE_STEP):
                time.sleep(SLEEP_S)
            matrix @ matrix
            dist.all_reduce(gradient)
            steps.synchronize()
    kernel = re.compile(r"nccl\w*Kernel\w*AllReduce" if torch.cuda.is_available() else r"gloo:all_reduce")
    ranges = sorted((one.time_range.start, one.time_range.end) for one in prof.events() if kernel.match(one.name))
    # All ranks leave an all-reduce together, nearly: there their clocks are set to 0.
    zero = ranges[1][1] if len(ranges) > 1 else 0.0
    return [((start - zero) / 1e3, (end - start) / 1e3) for start, end in ranges[2:]]


SKIPS = """
x = torch.ones(1, device=device)
if rank != world_size - 1:  # the last rank leaves it out
    dist.all_reduce(x)
    x.item()
""".strip()


def hang(machine: dict[str, Any], timeout: float = 10.0) -> dict[str, Any]:
    """The field ``hang``: all ranks but the last call an all-reduce; what the course says when the time is up."""
    with World(ranks(machine)) as world:
        world.run_cell("dist.all_reduce(torch.ones(1, device=device))")
        began = time.monotonic()
        try:
            world.run_cell(SKIPS, timeout=timeout)
            report = "The cell ended, and should not have."
        except RankTimeout as error:
            report = error.report
        return {"backend": backend(machine), "seconds": round(time.monotonic() - began, 1), "report": report}


# --- The file -----------------------------------------------------------------------------------------------


def results(machine: dict[str, Any], predicted: dict[str, Any] | str, **measured: Any) -> dict[str, Any]:
    """What the file holds.

    Args:
        machine: of ``look``.
        predicted: of ``predict``.
        measured: ``steps``, ``all_reduce``, ``straggler``, ``hang``, or only some of them.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    about = {"form": 1, "date": time.strftime("%Y-%m-%d", time.gmtime()), "course": version}
    found = {**about, "rehearsal": not machine["gpus"], "machine": {**machine}, **measured}
    found["machine"].pop("note", None)
    if isinstance(predicted, str):
        found["note"] = f"nothing was simulated: {predicted[:150]}"
    elif measured["steps"]:
        for row, simulated in zip(found["steps"], predicted["steps"], strict=True):
            row["simulated"] = simulated
        found["all_reduce"]["simulated"] = predicted["all_reduce"]
    return found


def as_text(found: dict[str, Any]) -> str:
    """The file's text, with four digits of each figure: JSON, a line for each field."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {name: short(each) for name, each in value.items()}
        return [short(each) for each in value] if isinstance(value, (list, tuple)) else value

    lines = (f'"{name}": {json.dumps(short(value), ensure_ascii=False)}' for name, value in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def faults(text: str) -> list[str]:
    """What is wrong with a file that somebody sent, in sentences."""
    if len(text.encode()) > MOST_BYTES:
        return [f"The file has more than {MOST_BYTES:,} bytes."]
    try:
        found = json.loads(text)
    except ValueError as error:
        return [f"This is no JSON: {error}."]
    if not isinstance(found, dict) or found.get("form") != 1:
        return ['The field "form" must be 1.']
    wrong = [f"There is no field called {name!r}." for name in found if name not in FIELDS]
    wrong += [f"The field {name!r} is missing." for name in ("date", "machine", "steps") if name not in found]
    if re.search(r"(?<![\w.])(/\w+){2}|[A-Za-z]:\\\\|\w@\w|GPU-[0-9a-f]{8}", text):
        wrong.append("It holds a path, an address or a serial number.")
    if found.get("rehearsal"):
        wrong.append("It is of a rehearsal without a GPU.")
    return wrong


# --- Tables and pictures ------------------------------------------------------------------------------------


def heading(machine: dict[str, Any]) -> str:
    """What is measured here, in a sentence."""
    if not machine["gpus"]:
        why = f" ({machine['note']})" if machine.get("note") else ""
        said = f"No GPU that torch can use is here{why}."
        return f"{said} This is a REHEARSAL on the CPU: it shows what runs, no figure counts."
    links = f", {machine['links']} between them" if machine["links"] else ""
    return f"{machine['gpus']} × {machine['gpu']}{links}; torch {machine['torch']}, NCCL {machine['nccl']}"


def off(ours: float | None, real: float | None) -> str:
    """How far the simulated figure is from the measured one: "+3%"."""
    return f"{ours / real - 1:+.0%}" if ours and real else ""


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each program: simulated, measured, and how far apart."""
    heads = [f"{'training step':36}", "GPUs", "simulated", "measured", "off", "simulated", "measured", "off", ""]
    lines = [heads]
    for row in rows:
        program, ours = Program(**row["program"]), row.get("simulated") or {}
        line = [f"{program.name:36}", str(program.gpus)]
        for field, unit, scale in (("seconds", "ms", 1e3), ("peak_bytes", "GB", 1e-9)):
            both = ours.get(field), row.get(field)
            line += [f"{one * scale:.2f} {unit}" if one else "–" for one in both]
            line.append(off(*both))
        lines.append([*line, row.get("error", "")])
    return "\n".join(line.rstrip() for line in text_table(lines, right=True))


def bandwidths(found: dict[str, Any], field: str = "seconds") -> list[float]:
    """Bus bandwidth of each size in GB/s, as nccl-tests has it: 2 (n − 1) / n · bytes / seconds."""
    share = 2 * (found["ranks"] - 1) / found["ranks"]
    return [
        share * nbytes / seconds / 1e9 for nbytes, seconds in zip(found["sizes"], found.get(field) or [], strict=False)
    ]


def steps_picture(rows: Sequence[dict[str, Any]], note: str) -> Any:
    """Seconds of each program, measured beside simulated."""
    from utils.draw.charts import bars

    values = {}
    for row in rows:
        name = Program(**row["program"]).name
        for kind, of in (("measured", row), ("simulated", row.get("simulated") or {})):
            if of.get("seconds"):
                values[f"{name}: {kind}"] = of["seconds"] * 1e3
    return bars(values, "ms for a step", "A training step, measured and simulated", log=True, note=note)


def all_reduce_picture(found: dict[str, Any], note: str) -> Any:
    """Bus bandwidth by size, measured beside simulated."""
    from utils.draw.charts import lines

    megabytes = [nbytes / 2**20 for nbytes in found["sizes"]]
    curves = {f"measured, {found['backend']}": (megabytes, bandwidths(found))}
    if found.get("simulated"):
        curves["simulated"] = (megabytes, bandwidths(found, "simulated"))
    title = f"All-reduce on {found['ranks']} ranks"
    return lines(curves, "MiB", "bus bandwidth in GB/s", title, log_x=True, log_y=True, note=note)


def straggler_picture(found: dict[str, Any], note: str) -> Any:
    """The all-reduces of all ranks, over time."""
    from utils.draw import Span, timeline

    spans = [
        Span(f"rank {rank}", begin / 1e3, (begin + length) / 1e3, "communication", str(step))
        for rank, each in enumerate(found["spans"])
        for step, (begin, length) in enumerate(each)
    ]
    if not spans:
        return "The profiler saw no all-reduce here."
    title = f"Rank {found['rank']} is late for step {found['late_step']}: the others wait in their all-reduce"
    return timeline(spans, title=title, caption=f"measured with torch.profiler, {found['backend']}. {note}")


def main() -> int:
    """Predict, measure, compare, and write the file."""
    machine = look()
    print(heading(machine), flush=True)
    predicted = predict(machine)
    if isinstance(predicted, str):
        print(f"Nothing is simulated here: {predicted}")
    measured: dict[str, Any] = {}
    for name, measure in (("steps", measure_steps), ("all_reduce", measure_all_reduce), ("straggler", straggler)):
        measured[name] = measure(machine)
        print(f"{name}: done", flush=True)
    found = results(machine, predicted, **measured, hang=hang(machine))
    print(table(found["steps"]))
    of = found["all_reduce"]
    ours = bandwidths(of, "simulated") or [0.0] * len(of["sizes"])
    for nbytes, real, simulated in zip(of["sizes"], bandwidths(of), ours, strict=True):
        print(f"all-reduce, {of['backend']}, {nbytes / 2**20:8.3f} MiB: {real:8.2f} GB/s, simulated {simulated:8.2f}")
    for rank, spans in enumerate(found["straggler"]["spans"]):
        print(f"rank {rank}, all-reduce of each step in ms:", *(f"{length:9.3f}" for _, length in spans))
    print(found["hang"]["report"])
    FILE.write_text(as_text(found), encoding="utf-8")
    print(f"written: {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
