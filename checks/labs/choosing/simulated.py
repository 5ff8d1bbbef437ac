"""Seconds and GiB of a plan for Llama 70B on 64 H100: simulated now, or before and stored in ``simulated.json``.

A pipeline of eight stages runs for a minute; the stored rows are what the same function has given. To run all of them
again (about an hour): ``python -m checks.labs.choosing.simulated``.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from functools import cache
from pathlib import Path

from lessons.training.layouts import Plan, simulate
from utils.training.models import LLAMA_70B

STORED = Path(__file__).with_name("simulated.json")
GPUS, BATCH, ROOM = 64, 64, 74  # sequences of 8,192 tokens; GiB that a plan may fill
NETWORKS = {
    "InfiniBand": {"network": "InfiniBand NDR"},
    "Ethernet": {"network": "Ethernet 100 Gbit/s", "nics_per_node": 1},
}


@cache
def rows(network: str) -> dict[Plan, tuple[float, float]]:
    """Of all plans that have been simulated on this network."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))[network]
    return {Plan(*numbers, saved): (seconds, gib) for *numbers, saved, seconds, gib in stored}


def time_and_memory(plan: Plan, network: str) -> tuple[float, float]:
    """Seconds of a step, and GiB of the fullest GPU."""
    return rows(network).get(plan) or simulate([plan], LLAMA_70B, GPUS, BATCH, **NETWORKS[network])[0]


def fastest(network: str) -> tuple[float, Plan]:
    """Of those that fit."""
    return min(((s, plan) for plan, (s, gib) in rows(network).items() if gib <= ROOM), key=lambda one: one[0])


def store(found: dict[str, dict[Plan, tuple[float, float]]]) -> None:
    """Write ``simulated.json``, a line for each plan."""
    parts = []
    for network, plans in found.items():
        lines = [json.dumps([*astuple(plan), round(s, 4), round(gib, 2)]) for plan, (s, gib) in plans.items()]
        parts.append(f'"{network}": [\n' + ",\n".join(sorted(lines)) + "\n]")
    STORED.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    store({
        network: {plan: simulate([plan], LLAMA_70B, GPUS, BATCH, **told)[0] for plan in rows(network)}
        for network, told in NETWORKS.items()
    })  # fmt: skip
