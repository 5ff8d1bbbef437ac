"""Measures every operator of ``operators.py`` on this machine's GPU, into a JSON file.

python benchmarks/measure_operators.py FILE [--limit SECONDS]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from operators import CASES, Run


class Smi:
    """Power and clocks, ten times a second, by nvidia-smi."""

    def __init__(self) -> None:
        query = "--query-gpu=power.draw.instant,clocks.sm,clocks.mem,temperature.gpu"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "50"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.seen: list[tuple[float, list[float]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.seen.append((time.monotonic(), [float(one) for one in line.split(",")]))

    def between(self, began: float, ended: float) -> dict[str, float]:
        rows = [values for when, values in self.seen if began <= when <= ended]
        if len(rows) < 3:
            return {}
        watts, clock = (statistics.median(column) for column in list(zip(*rows, strict=True))[:2])
        return {"watts": round(watts), "mhz": round(clock)}


def measure_one(run: Run, smi: Smi, block_s: float, blocks: int = 5) -> dict[str, float]:
    """Median seconds, and power and clocks while it ran."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def timed(repeats: int) -> float:
        torch.cuda._sleep(20_000_000)  # some 10 ms: the host gets ahead
        events[0].record()
        for _ in range(repeats):
            run()
        events[1].record()
        torch.cuda.synchronize()
        return events[0].elapsed_time(events[1]) / 1e3 / repeats

    run()
    timed(2)
    estimate = timed(3)
    repeats = max(2, min(int(block_s / estimate), 4000))
    timed(repeats)  # the clocks settle
    began = time.monotonic()
    found = [timed(repeats) for _ in range(blocks)]
    return {"seconds": statistics.median(found), **smi.between(began, time.monotonic())}


def measure(path: Path, limit_s: float) -> None:
    """Every row on this machine's GPU, into a JSON file."""
    end, smi = time.monotonic() + limit_s, Smi()
    asked = "--query-gpu=name,power.limit,clocks.max.sm,clocks.max.mem,driver_version"
    card = subprocess.run(["nvidia-smi", asked, "--format=csv,noheader"], capture_output=True, text=True).stdout
    time.sleep(1)
    idle = smi.seen[-1][1] if smi.seen else []
    rows: dict[str, Any] = {}
    about = {"card": card.strip(), "torch": torch.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}", "idle": idle}
    properties = torch.cuda.get_device_properties()
    about["multiprocessors"] = properties.multi_processor_count
    for name, make in CASES.items():
        if time.monotonic() > end:
            rows[name] = {"error": "no time left"}
            continue
        try:
            rows[name] = measure_one(make("cuda"), smi, 0.12 if "product" in name else 0.04)
        except Exception as error:
            rows[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
        torch.cuda.empty_cache()
        path.write_text(json.dumps({"about": about, "rows": rows}, indent=1, ensure_ascii=False))
        print(name, rows[name], flush=True)
    smi.process.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--limit", type=float, default=240, help="seconds (default: %(default)s)")
    options = parser.parse_args()
    measure(options.file, options.limit)
