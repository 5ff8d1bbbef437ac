"""Reads what NVIDIA's ``nvidia-smi`` prints: the GPUs of a machine, and what connects them.

The functions take the printed text, so that they can be tested on any machine.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

QUERY = [
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,driver_version",
    "--format=csv,noheader,nounits",
]
TOPOLOGY = ["nvidia-smi", "topo", "-m"]


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU. Memory in bytes (None: unknown)."""

    index: int
    name: str
    memory_bytes: int | None
    driver: str


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """What ``nvidia-smi --query-gpu=index,name,memory.total,driver_version`` printed (memory in MiB)."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 4 and row[0].isdigit():
            mib = row[2].strip()
            memory = int(mib) * 2**20 if mib.isdigit() else None
            gpus.append(Gpu(int(row[0]), row[1].strip(), memory, row[3].strip()))
    return tuple(gpus)


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """What ``nvidia-smi topo -m`` printed: {(0, 1): "NV18", …}, one entry for each pair of GPUs."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    header = next((words for words in lines if len(words) > 1 and words[0] == "GPU0" and words[1] != "X"), [])
    columns = [int(word[3:]) for word in header if re.fullmatch(r"GPU\d+", word)]
    pairs = {}
    for words in lines:
        if words and words is not header and re.fullmatch(r"GPU\d+", words[0]):
            row = int(words[0][3:])
            pairs |= {(row, column): word for column, word in zip(columns, words[1:], strict=False) if row < column}
    return pairs


_PATHS = {
    "PIX": "PCIe, one switch",
    "PXB": "PCIe, several switches",
    "PHB": "PCIe, through the processor",
    "NODE": "PCIe, through the processor",
    "SYS": "PCIe and the link between processors",
}


def describe_interconnect(pairs: dict[tuple[int, int], str]) -> str:
    """A topology in words: "NVLink, 18 links" or a list where pairs of GPUs differ."""
    words = []
    for code in sorted(set(pairs.values())):
        name = f"NVLink, {code[2:]} links" if re.fullmatch(r"NV\d+", code) else _PATHS.get(code, code)
        if name not in words:
            words.append(name)
    return "; ".join(words) or "unknown"
