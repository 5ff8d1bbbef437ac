"""Exercise 3: ``ring_time`` and ``hierarchical_time``, each called with (nbytes, nodes, per_node, inside, between)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.plain import from_array, number

CLOSE = 1e-10  # ten thousand roundings are less
Sheet = dict[str, float]


def draw(rng: random.Random) -> list[Case]:
    """Clusters of any size: one node, one GPU on each, one GPU; networks that are slower or faster than the inside.

    Some differ from the one before in one thing only.
    """
    shapes = [(2, 2), (1, 2), (3, 1), (1, 1), (16, 4), (1, 8), (rng.randint(17, 99), rng.randint(9, 72))]
    shapes += [(rng.randint(2, 16), rng.randint(2, 8)) for _ in range(7)]
    clusters: list[list[Any]] = []
    for place, (nodes, per_node) in enumerate(shapes):
        inside = {"alpha_us": rng.uniform(1, 60), "GB_per_s_both_directions": 10 ** rng.uniform(1, 3.3)}
        between = {"alpha_us": rng.uniform(1, 60), "Gbit_per_s": 10 ** rng.uniform(0.5, 3.5)}
        if place % 3 == 0:  # the usual order
            inside, between = {"alpha_us": 3.4, "GB_per_s_both_directions": 900}, {"alpha_us": 50, "Gbit_per_s": 25}
        clusters.append([int(10 ** rng.uniform(2, 9.5)), nodes, per_node, inside, between])
    for place in (1, 2, 3):  # whether a link is used shows where it would be the slower one
        clusters[place][3:] = [{"alpha_us": rng.uniform(61, 90), "GB_per_s_both_directions": rng.uniform(2, 9)},
                               {"alpha_us": rng.uniform(1, 60), "Gbit_per_s": rng.uniform(50, 99)}]  # fmt: skip
    nbytes, nodes, per_node, inside, between = clusters[-1]
    many = nodes * per_node
    siblings = [[nbytes + 1, nodes, per_node, inside, between], [nbytes, 1, many, inside, between]]
    siblings += [[nbytes, many, 1, inside, between]]  # as many GPUs in all
    siblings += [[nbytes, many, 1, *({k: 2 * v for k, v in one.items()} for one in (inside, between))]]
    clusters += siblings
    return [{"ranks": 1, "clusters": clusters, "seed": rng.getrandbits(30)}]


def scene_of(function: str) -> Callable[..., None]:
    def scene(case: Case, watch: Any, facts: Facts) -> None:
        facts["results"] = []
        sheets: tuple[Sheet, Sheet] = {}, {}  # the same dicts: what counts is what is in them
        for nbytes, nodes, per_node, inside, between in case["clusters"]:
            for sheet, values in zip(sheets, (inside, between), strict=True):
                sheet.update(values)
            with watch.step(function, inside=sheets[0], between=sheets[1]):
                result = watch.answers[function].function(nbytes, nodes, per_node, *sheets)
            result = from_array(result)
            seconds = number(result)
            facts["results"].append(f"a {type(result).__name__}" if seconds is None else float(seconds))

    return scene


def ring(
    n: float,
    nodes: int,
    per_node: int,
    inside: Sheet,
    between: Sheet,
    bits: float = 8,
    directions: float = 2,
    rounds: int = 2,
    piece: Callable[[float, int], float] = lambda n, p: n / p,
    alpha: str = "per step",
    hops: str = "slowest",
    ranks: str = "all",
    unit: float = 1.0,
    micro: float = 1e-6,
) -> float:
    """What ``ring_time`` gives; with a keyword, if one thing in it is wrong."""
    p = nodes if ranks == "nodes" else nodes * per_node
    if p == 1:
        return 0.0
    alphas_betas = {
        "inside": (micro * inside["alpha_us"], directions / inside["GB_per_s_both_directions"] / 1e9),
        "between": (micro * between["alpha_us"], bits / between["Gbit_per_s"] / 1e9),
    }
    used = [hops] if hops in alphas_betas else ["inside"] * (per_node > 1) + ["between"] * (nodes > 1)
    steps, latencies = rounds * (p - 1), {"per step": rounds * (p - 1), "once": 1, "never": 0}[alpha]
    if hops == "network":
        used = used[-1:]
    if hops == "bandwidth":
        used = [max(used, key=lambda link: alphas_betas[link][1])]
    times = [latencies * a + steps * piece(n, p) * b for a, b in (alphas_betas[link] for link in used)]
    return unit * (sum(times) / len(times) if hops == "mean" else max(times))


def levels(
    n: float,
    nodes: int,
    per_node: int,
    inside: Sheet,
    between: Sheet,
    bits: float = 8,
    directions: float = 2,
    shared: bool = True,
    cut: bool = True,
    phases: int = 2,
    rounds: int = 2,
    alpha: float = 1.0,
    unit: float = 1.0,
    micro: float = 1e-6,
) -> float:
    """What ``hierarchical_time`` gives; with a keyword, if one thing in it is wrong."""
    beta_inside = directions / inside["GB_per_s_both_directions"] / 1e9
    beta_between = bits / between["Gbit_per_s"] / 1e9 * (per_node if shared else 1)
    part = n / per_node if cut else n
    within = phases * (per_node - 1) * (alpha * micro * inside["alpha_us"] + n / per_node * beta_inside)
    across = rounds * (nodes - 1) * (alpha * micro * between["alpha_us"] + part / nodes * beta_between)
    return unit * (within + across)


_BOTH: dict[str, dict[str, Any]] = {
    "a network is sold in bits per second: divide by 8 to get bytes": {"bits": 1},
    "NVLink and PCIe are given with both directions added up; a ring sends one way: take half": {"directions": 1},
    "the time is wanted in seconds, not in milliseconds": {"unit": 1e3},
    "the time is wanted in seconds, not in microseconds": {"unit": 1e6},
    "α is given in microseconds: 1 µs is 0.000001 s": {"micro": 1.0},
}
RING_MISTAKES: dict[str, dict[str, Any]] = _BOTH | {
    "the pieces go round twice, once to add up and once to hand out the sum": {"rounds": 1},
    "each step carries one piece of n/p bytes, not the whole tensor": {"piece": lambda n, p: n},
    "bytes sent per rank are 2(p−1)/p·n: the (p−1)/p is forgotten": {"piece": lambda n, p: n / (p - 1)},
    "every one of the steps costs an α, not only the first": {"alpha": "once"},
    "the latency α is forgotten": {"alpha": "never"},
    "all ranks step together, so the slowest link sets the pace, not the link inside a node": {"hops": "inside"},
    "inside one node nobody uses the network": {"hops": "between"},
    "all ranks step together: take the slowest link, not the mean of both": {"hops": "mean"},
    "the network is not always the slower one: take the link on which a step takes longest": {"hops": "network"},
    "the slowest link is the one on which a step with this piece takes longest: α counts too": {"hops": "bandwidth"},
    "the ring goes through all processes, not only through one per node": {"ranks": "nodes"},
}
LEVEL_MISTAKES: dict[str, dict[str, Any]] = _BOTH | {
    "all rings between the nodes run at the same time and share the node's one card": {"shared": False},
    "only a part of n / per_node bytes travels in each ring between the nodes": {"cut": False},
    "the sum must be handed round inside the nodes at the end: the all-gather is forgotten": {"phases": 1},
    "between the nodes there is a whole all-reduce, with two rounds": {"rounds": 1},
    "the latency α is forgotten": {"alpha": 0.0},
}


def judge_of(name: str, right: Callable[..., float], mistakes: dict[str, dict[str, Any]]) -> Callable[..., Any]:
    def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
        clusters, results = case["clusters"], world[0]["results"]
        for cluster, got in zip(clusters, results, strict=False):
            value = right(*cluster)
            if isinstance(got, float) and math.isclose(got, value, rel_tol=CLOSE):
                continue
            where = f"{cluster[0]:,} bytes on {cluster[1]} × {cluster[2]}, inside {_shown(cluster[3])}, between "
            if isinstance(got, str):
                yield Broken("value:kind", f"{name} returns a number of seconds", got)
                return
            fits = (why for why, how in mistakes.items() if _all(clusters, results, right, how))
            words = next(fits, _off(name, got, value))
            yield Broken(
                "value:time", f"{words}. These are {where}{_shown(cluster[4])}", f"{got:.9g} s", f"{value:.9g} s"
            )
            return

    return judge


def _off(name: str, got: float, value: float) -> str:
    if not value:
        return "one GPU waits for nobody"
    if (times := f"{got / value:.3g}") == "1":
        words = (
            f"{name} is off by {abs(got / value - 1):.1g} of what it should be, and floats explain {CLOSE} at most: "
        )
        return words + "a piece, a unit or a result is rounded, or was kept from another call"
    return f"{name} is {times} times what it should be"


def _all(clusters: Any, results: Any, formula: Callable[..., float], how: dict[str, Any]) -> bool:
    return all(isinstance(got, float) and math.isclose(got, formula(*cluster, **how), rel_tol=1e-6)
               for cluster, got in zip(clusters, results, strict=True))  # fmt: skip


def _shown(sheet: Sheet) -> str:
    return ", ".join(f"{value:.4g} {name.replace('_', ' ')}" for name, value in sheet.items())


def _contract(function: str, right: Callable[..., float], mistakes: dict[str, dict[str, Any]]) -> Contract:
    return Contract(
        name=f"single_vs_multi_node.{function}",
        rules={function: Rules()},
        draw=draw,
        scene=scene_of(function),
        judge=judge_of(function, right, mistakes),
        mistakes=(("value:*", "{}"),),
        figures=lambda played: {"clusters": len(played[0][0]["clusters"])},
    )


RING_TIME = _contract("ring_time", ring, RING_MISTAKES)
HIERARCHICAL_TIME = _contract("hierarchical_time", levels, LEVEL_MISTAKES)
