"""The exercises of this lab: ranks and nodes, process groups, the time of an all-reduce, broken launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from utils.checks import Wrong, exercise, expect, how_far, passed, run, run_cases
from utils.checks.single_vs_multi_node import probes
from utils.hardware import links
from utils.hardware.links import Link
from utils.training.models import RESNET50_GRADIENT_BYTES

# --- 1: from (node, local rank) to ranks and back --------------------------------------------------------------

SHAPES = ((1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (5, 3), (16, 8))  # nodes, processes per node

_RANK_MISTAKES: dict[str, Callable[[int, int, int, int], int]] = {
    "The launcher counts node by node; you deal the ranks out to the nodes like cards": lambda n, k, N, L: k * N + n,
    "Multiply by the processes per node, not by the number of nodes": lambda n, k, N, L: n * N + k,
    "Node rank and local rank are swapped": lambda n, k, N, L: k * L + n,
    "Ranks are counted from 0, yours from 1": lambda n, k, N, L: n * L + k + 1,
    "The local rank alone is not enough: nodes before this one have processes too": lambda n, k, N, L: k,
}
_BACK_MISTAKES: dict[str, Callable[[int, int, int], tuple[int, int, int]]] = {
    "Node rank and local rank are swapped in what you return": lambda r, N, L: (r % L, r // L, N * L),
    "The world size counts processes, yours counts nodes": lambda r, N, L: (r // L, r % L, N),
    "Divide by the processes per node, not by the number of nodes": lambda r, N, L: (r // N, r % N, N * L),
    "The launcher counts node by node; you deal the ranks out like cards": lambda r, N, L: (r % N, r // N, N * L),
    "Node ranks and local ranks are counted from 0, yours from 1": lambda r, N, L: (r // L + 1, r % L + 1, N * L),
}


@exercise(title="Ranks and back", difficulty=1, minutes=10, parts={"rank_of": 1, "coordinates_of": 1})
def ranks_and_back(rank_of: Any, coordinates_of: Any) -> dict[str, int]:
    """Judge ``rank_of(node_rank, local_rank, nodes, per_node)`` and ``coordinates_of(rank, nodes, per_node)``."""
    places = [(n, k, nodes, per_node) for nodes, per_node in SHAPES for n in range(nodes) for k in range(per_node)]
    right = [n * per_node + k for n, k, _, per_node in places]
    _judge("rank_of", run_cases(rank_of, places), places, right, _RANK_MISTAKES)
    passed("rank_of")

    ranks = [(rank, nodes, per_node) for rank, (_, _, nodes, per_node) in zip(right, places, strict=True)]
    back = [(n, k, nodes * per_node) for n, k, nodes, per_node in places]
    _judge("coordinates_of", run_cases(coordinates_of, ranks), ranks, back, _BACK_MISTAKES)
    return {"shapes": len(SHAPES), "ranks there and back": len(places)}


def _judge(name: str, results: list[Any], cases: list[Any], right: list[Any], mistakes: dict[str, Any]) -> None:
    for case, result in zip(cases, results, strict=True):
        parts = result if isinstance(result, tuple | list) else [result]
        if any(isinstance(part, float) and not part.is_integer() for part in parts):
            raise Wrong(f"{name}{case} is no whole number: divide with // instead of /", measured=result)
    candidates = {sentence: [formula(*case) for case in cases] for sentence, formula in mistakes.items()}
    _name_the_mistake([f"{name}{case}" for case in cases], results, right, candidates)


def _name_the_mistake(
    calls: Sequence[str],
    results: Sequence[Any],
    right: Sequence[Any],
    mistakes: dict[str, Sequence[Any]],
    relative: float = 0.0,
    exactly: float = 0.0,
) -> None:
    """Raise Wrong if a result is not right; with a mistake's sentence if all results are what that mistake gives.

    Args:
        calls: what was computed, for sentences.
        results: what the answer gave.
        right: what it should have given.
        mistakes: for each mistake's sentence what it would have given.
        relative: tolerance for a right answer.
        exactly: tolerance for recognising a mistake.
    """
    for call, result, value in zip(calls, results, right, strict=True):
        distance = how_far(result, value, relative=relative)
        if distance is None:
            continue
        for sentence, values in mistakes.items():
            if how_far(list(results), list(values), relative=exactly) is None:
                raise Wrong(f"{sentence}. See {call}", measured=result, expected=value)
        raise Wrong(f"{call} is {distance}", measured=result, expected=value)


# --- 2: process groups -----------------------------------------------------------------------------------------

GROUP_SHAPES = ((2, 3), (3, 2), (2, 2))  # where nodes and processes differ in number, mistakes show


@exercise(title="Groups per node and across nodes", difficulty=2, minutes=20)
def groups_of_nodes(make_groups: Any) -> dict[str, Any]:
    """Judge ``make_groups(nodes, per_node)``, which returns this rank's two process groups."""
    for nodes, per_node in GROUP_SHAPES:
        arguments = (make_groups, nodes, per_node)
        run(probes.groups, *arguments, ranks=nodes * per_node, nodes=nodes)
    shapes = ", ".join(f"{nodes} × {per_node}" for nodes, per_node in GROUP_SHAPES)
    return {"shapes": shapes, "all-reduces checked": 2 * sum(nodes * per_node for nodes, per_node in GROUP_SHAPES)}


# --- 3: how long an all-reduce takes ---------------------------------------------------------------------------

TOLERANCE = 0.05
Topology = tuple[float, int, int, dict[str, float], dict[str, float]]


def data_sheet(inside: Link, between: Link) -> tuple[dict[str, float], dict[str, float]]:
    """Two links as data sheets print them: NVLink and PCIe with both directions added up, networks in bits."""
    return (
        {"alpha_us": 1e6 * inside.alpha_s, "GB_per_s_both_directions": inside.both_directions_bytes_per_s / 1e9},
        {"alpha_us": 1e6 * between.alpha_s, "Gbit_per_s": between.bytes_per_s * 8 / 1e9},
    )


# bytes, nodes, processes per node, link inside, link between
TOPOLOGIES = (
    (RESNET50_GRADIENT_BYTES, 1, 8, links.NVLINK4, links.ETHERNET_25),
    (RESNET50_GRADIENT_BYTES, 2, 2, links.NVLINK4, links.ETHERNET_25),
    (RESNET50_GRADIENT_BYTES, 3, 1, links.NVLINK4, links.ETHERNET_10),
    (RESNET50_GRADIENT_BYTES, 2, 8, links.PCIE3, links.INFINIBAND_NDR),
    (4_096, 4, 8, links.NVLINK3, links.INFINIBAND_HDR),
    (1_000_000_000, 16, 4, links.PCIE4, links.ETHERNET_100),
    (1_000_000, 1, 1, links.PCIE4, links.ETHERNET_100),
)

_RING_MISTAKES: dict[str, dict[str, Any]] = {
    "A network is sold in bits per second: divide by 8 to get bytes": {"bits": 1},
    "NVLink and PCIe are given with both directions added up; a ring sends one way: take half": {"directions": 1},
    "The pieces go round twice, once to add up and once to hand out the sum: 2(p−1) steps": {"rounds": 1},
    "Each step carries one piece of n/p bytes, not the whole tensor": {"piece": lambda n, p: n},
    "Bytes sent per rank are 2(p−1)/p·n: the (p−1)/p is forgotten": {"piece": lambda n, p: n / (p - 1)},
    "Every one of the 2(p−1) steps costs an α, not only the first": {"alpha": "once"},
    "The latency α is forgotten": {"alpha": "never"},
    "All ranks step together, so the slowest link sets the pace, not the link inside a node": {"hops": "inside"},
    "Inside one node nobody uses the network": {"hops": "between"},
    "All ranks step together: take the slowest link, not the mean of both": {"hops": "mean"},
    "The ring goes through all processes, not only through one per node": {"ranks": "nodes"},
    "The time is wanted in seconds, not in milliseconds": {"unit": 1e3},
    "The time is wanted in seconds, not in microseconds": {"unit": 1e6},
    "α is given in microseconds: 1 µs is 0.000001 s": {"micro": 1.0},
}
_LEVEL_MISTAKES: dict[str, dict[str, Any]] = {
    "A network is sold in bits per second: divide by 8 to get bytes": {"bits": 1},
    "NVLink and PCIe are given with both directions added up; a ring sends one way: take half": {"directions": 1},
    "All rings between the nodes run at the same time and share the node's one card": {"shared": False},
    "Only a part of n / per_node bytes travels in each ring between the nodes": {"cut": False},
    "The sum must be handed round inside the nodes at the end: the all-gather is forgotten": {"phases": 1},
    "Between the nodes there is a whole all-reduce, with two rounds: 2(N−1) steps": {"rounds": 1},
    "The latency α is forgotten": {"alpha": 0.0},
    "The time is wanted in seconds, not in milliseconds": {"unit": 1e3},
    "The time is wanted in seconds, not in microseconds": {"unit": 1e6},
    "α is given in microseconds: 1 µs is 0.000001 s": {"micro": 1.0},
}


@exercise(
    title="Predict the time of an all-reduce",
    difficulty=2,
    minutes=20,
    parts={"ring_time": 1, "hierarchical_time": 1},
)
def all_reduce_times(ring_time: Any, hierarchical_time: Any) -> dict[str, Any]:
    """Judge two estimates in seconds, each called with (nbytes, nodes, per_node, inside, between)."""
    cases = [(n, nodes, per_node, *data_sheet(*both)) for n, nodes, per_node, *both in TOPOLOGIES]
    worst = 0.0
    for function, reference, wrong_way, mistakes in (
        (ring_time, links.flat_ring_all_reduce, _ring, _RING_MISTAKES),
        (hierarchical_time, links.hierarchical_all_reduce, _levels, _LEVEL_MISTAKES),
    ):
        results = run_cases(function, cases)
        right = [reference(*topology) for topology in TOPOLOGIES]
        candidates = {sentence: [wrong_way(*case, **how) for case in cases] for sentence, how in mistakes.items()}
        calls = [f"{function.name} for {_topology_text(*topology)}" for topology in TOPOLOGIES]
        _name_the_mistake(calls, results, right, candidates, relative=TOLERANCE, exactly=0.001)
        errors = (abs(result / value - 1) for result, value in zip(results, right, strict=True) if value)
        worst = max(worst, *errors)
        passed(function.name)
    return {"topologies": len(TOPOLOGIES), "largest error": f"{worst:.1%}"}


def _topology_text(nbytes: float, nodes: int, per_node: int, inside: Link, between: Link) -> str:
    return f"{nbytes:,} bytes on {nodes} × {per_node} ({inside.name}, {between.name})"


def _ring(
    n: float,
    nodes: int,
    per_node: int,
    inside: dict[str, float],
    between: dict[str, float],
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
    """What ``ring_time`` gives if one thing in it is wrong."""
    p = nodes if ranks == "nodes" else nodes * per_node
    if p == 1:
        return 0.0
    alphas_betas = {
        "inside": (micro * inside["alpha_us"], directions / inside["GB_per_s_both_directions"] / 1e9),
        "between": (micro * between["alpha_us"], bits / between["Gbit_per_s"] / 1e9),
    }
    used = [hops] if hops in alphas_betas else ["inside"] * (per_node > 1) + ["between"] * (nodes > 1)
    steps, latencies = rounds * (p - 1), {"per step": rounds * (p - 1), "once": 1, "never": 0}[alpha]
    times = [latencies * a + steps * piece(n, p) * b for a, b in (alphas_betas[link] for link in used)]
    return unit * (sum(times) / len(times) if hops == "mean" else max(times))


def _levels(
    n: float,
    nodes: int,
    per_node: int,
    inside: dict[str, float],
    between: dict[str, float],
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
    """What ``hierarchical_time`` gives if one thing in it is wrong."""
    beta_inside = directions / inside["GB_per_s_both_directions"] / 1e9
    beta_between = bits / between["Gbit_per_s"] / 1e9 * (per_node if shared else 1)
    part = n / per_node if cut else n
    within = phases * (per_node - 1) * (alpha * micro * inside["alpha_us"] + n / per_node * beta_inside)
    across = rounds * (nodes - 1) * (alpha * micro * between["alpha_us"] + part / nodes * beta_between)
    return unit * (within + across)


# --- 4: broken launches ----------------------------------------------------------------------------------------

_MEANING = {
    "RANK": "every process has a rank of its own, counted from 0 through all nodes",
    "LOCAL_RANK": "local ranks are counted from 0 on each node",
    "WORLD_SIZE": "the world size is the number of all processes",
    "MASTER_ADDR": "all meet at one address, that of the node of rank 0",
    "MASTER_PORT": "all meet at one port, that of rank 0",
    "NODE_ADDR": "this one was right, and says where the process runs",
}


@exercise(title="Repair broken launches", difficulty=3, minutes=25, parts={"every value": 2, "the ranks meet": 1})
def broken_launches(repair: Any) -> dict[str, int]:
    """Judge ``repair(environments)``: a list of dicts, one for each process, comes back with the right values."""
    broken = probes.broken_launches()
    results = run_cases(repair, [(environments,) for _, environments, _ in broken])
    for (name, before, right), after in zip(broken, results, strict=True):
        _judge_repair(name, before, right, after)
    passed("every value")
    really_started = ("own_address", "counted_on_each_node")
    for name in really_started:
        met = run(probes.start_repaired, repair, name, ranks=4, nodes=2, timeout=30)
        expect("The ranks met, but do not add up to 0 + 1 + 2 + 3", met, [6] * 4)
    return {"launches repaired": len(broken), "really started": len(really_started)}


def _judge_repair(name: str, before: list[Any], right: list[Any], after: Any) -> None:
    if not isinstance(after, list) or not all(isinstance(environment, dict) for environment in after):
        raise Wrong("repair returns a list of dicts, one for each process", measured=after)
    if len(after) != len(right):
        raise Wrong(f"{name}: no process may be lost or added", measured=len(after), expected=len(right))
    for process, (was, wanted, got) in enumerate(zip(before, right, after, strict=True)):
        if set(got) != set(wanted):
            missing = ", ".join(sorted(set(wanted) ^ set(got)))
            raise Wrong(f"{name}: process {process} must keep its variables; missing or added: {missing}.")
        for variable, value in wanted.items():
            if got[variable] == value:
                continue
            if not isinstance(got[variable], str):
                raise Wrong(
                    f"{name}: environment variables are text, {variable} of process {process} is not: use str(…)",
                    measured=got[variable],
                    expected=repr(value),
                )
            what = "was right before" if was[variable] == value else "is still wrong"
            raise Wrong(
                f"{name}: {variable} of process {process} {what}; {_MEANING[variable]}",
                measured=got[variable],
                expected=value,
            )
