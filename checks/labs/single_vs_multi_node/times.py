"""Check of ``ring_time`` and ``hierarchical_time``: seconds, from data sheets."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, judge, leaves, refuse
from checks.engine.plain import from_array, kind_of, number
from checks.points import passed

STEPS = "    steps = []\n"
NEAR, FAR = '["GB_per_s_both_directions"] * 1e9 / 2', 'between["Gbit_per_s"] * 1e9 / 8'
RING, LEVELS = "return 2 * (ranks - 1) * max(steps, default=0.0)", "return scatter + across + scatter"
LINK = "if nodes > 1:\n        bytes_per_s"
SHEETS = {
    "a network is sold in bits per second: divide by 8 to get bytes": {FAR: FAR[:-4]},
    "NVLink and PCIe are given with both directions added up; a ring sends one way: take half": {NEAR: NEAR[:-4]},
    "α is given in microseconds: 1 µs is 0.000001 s": {'["alpha_us"] * 1e-6': '["alpha_us"]'},
    "the latency α is forgotten": {'["alpha_us"] * 1e-6': '["alpha_us"] * 0'},
}  # fmt: skip
RING_TIME = Reference("single_vs_multi_node", "ring_time", {
    **SHEETS,
    "the time is wanted in seconds, not in milliseconds": {RING: RING + " * 1e3"},
    "the pieces go round twice, once to add up and once to hand out the sum": {RING: RING.replace("2 * ", "")},
    "each step carries one piece of n/p bytes, not the whole tensor": {"nbytes / ranks": "nbytes"},
    "all but one of the p pieces go round, so there are 2(p - 1) steps, not 2p": {"2 * (ranks - 1)": "2 * ranks"},
    "all ranks step together, so the slowest link sets the pace, not the link inside a node":
        {LINK: LINK.replace("nodes > 1", "not ranks"), "if per_node > 1:": "if ranks > 1:"},
    "inside one node nobody uses the network": {LINK: LINK.replace("nodes > 1:", "ranks > 1:\n        steps.clear()")},
    "with one GPU on each node nobody uses the link inside a node": {"if per_node > 1:": "if ranks > 1:"},
    "a step does not go over both links, one after the other: take the slowest":
        {"max(steps, default=0.0)": "sum(steps)"},
    "the network is not always the slower one: take the link on which a step takes longest":
        {LINK: LINK.replace("1:", "1:\n        steps.clear()")},
    "the ring goes through all processes, not only through one per node": {"ranks = nodes * per_node": "ranks = nodes"},
})  # fmt: skip
TWICE, PART = "across = 2 * (nodes - 1)", "part / nodes"
HIERARCHICAL_TIME = Reference("single_vs_multi_node", "hierarchical_time", {
    **SHEETS,
    "the time is wanted in seconds, not in milliseconds": {LEVELS: "return (scatter + across + scatter) * 1e3"},
    "all rings between the nodes run at the same time and share the node's one NIC": {"/ 8 / per_node": "/ 8"},
    "only a part of n / per_node bytes travels in each ring between the nodes": {PART: "nbytes / nodes"},
    "a share is cut into pieces for the ring between the nodes, one for each of them": {PART: "part"},
    "in each step inside a node a GPU sends a piece of n / per_node bytes, not all n":
        {"+ part / bytes_per_s": "+ nbytes / bytes_per_s"},
    "the sum must be handed round inside the nodes at the end: the all-gather is forgotten":
        {LEVELS: "return scatter + across"},
    "inside a node one round is a reduce-scatter, two are an all-reduce: one before, and one after":
        {LEVELS: "return 4 * scatter + across"},
    "between the nodes there is a whole all-reduce, with two rounds": {TWICE: "across = (nodes - 1)"},
    "the phases come one after the other: add their times": {LEVELS: "return max(2 * scatter, across)"},
})  # fmt: skip
PARTS = {"ring_time": 1, "hierarchical_time": 1}
OFFICIAL = Reference(
    "single_vs_multi_node", "ring_time hierarchical_time", {**HIERARCHICAL_TIME.mistakes, **RING_TIME.mistakes}
)


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """First, bytes take much longer than latencies, by the network and then by the inside; later anything may be."""
    if number == 0:
        return _case(10**9, 2, 4, (3.4, 900), (50, 25))
    if number == 1:
        return _case(10**9, 3, 2, (10, 20), (5, 400))
    many = rng.randint(2, 16), rng.randint(2, 8)
    shapes = many, many, (1, 2), (3, 1), (1, 1), many
    near = rng.randint(1, 60), round(10 ** rng.uniform(0.5, 3.3))
    far = rng.randint(1, 60), round(10 ** rng.uniform(0.5, 3.5))
    return _case(int(10 ** rng.uniform(1.5, 9.5)), *shapes[number % 6], near, far)


def _case(nbytes: int, nodes: int, per_node: int, near: Any, far: Any) -> dict[str, Any]:
    inside = {"alpha_us": near[0], "GB_per_s_both_directions": near[1]}
    between = {"alpha_us": far[0], "Gbit_per_s": far[1]}
    return {"nbytes": nbytes, "nodes": nodes, "per_node": per_node, "inside": inside, "between": between}


def play(case: dict[str, Any], time: Callable[..., Any]) -> dict[str, Any]:
    with leaves(inside=case["inside"], between=case["between"]):
        result = from_array(time(*case.values()))
    refuse(number(result) is None, "the result is no number of seconds", measured=kind_of(result))
    return {"the seconds": number(result)}


@exercise(title="Predict the time of an all-reduce", difficulty=2, minutes=20, parts=PARTS, official=OFFICIAL)
def all_reduce_times(ring_time: Any, hierarchical_time: Any) -> dict[str, Any]:
    """Judge two estimates in seconds, each called with (nbytes, nodes, per_node, inside, between)."""
    judge(RING_TIME, play, draw, ring_time, timeout=30)
    passed("ring_time")
    return judge(HIERARCHICAL_TIME, play, draw, hierarchical_time, timeout=30)
