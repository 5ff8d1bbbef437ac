"""Exercise 4 of the lab on one node and several: how long an all-reduce takes. What is not here is in the official solution."""

from decimal import Decimal
from fractions import Fraction

import torch
from known_answers import right, wrong

RING = "return 2 * (ranks - 1) * max(steps, default=0.0)"
right("nothing to do for one GPU", {"    steps = []\n": "    if ranks == 1:\n        return 0\n    steps = []\n"})
right("in microseconds until the end", {RING: "return 2 * (ranks - 1) * 1e6 * max(steps, default=0) / 1e6"})


@right("step by step")
def step_by_step():
    def ring(nbytes, ranks, alpha, beta):
        seconds = 0.0
        for _ in range(2):  # add up, hand out
            for _ in range(ranks - 1):
                seconds += alpha + nbytes / ranks * beta
        return seconds

    def near(link):
        return link["alpha_us"] / 1e6, 1 / (link["GB_per_s_both_directions"] / 2 * 1e9)

    def far(link):
        return link["alpha_us"] / 1e6, 1 / (link["Gbit_per_s"] / 8 * 1e9)

    def ring_time(nbytes, nodes, per_node, inside, between):
        ranks, times = nodes * per_node, [0.0]
        if per_node > 1:
            times.append(ring(nbytes, ranks, *near(inside)))
        if nodes > 1:
            times.append(ring(nbytes, ranks, *far(between)))
        return max(times)

    def hierarchical_time(nbytes, nodes, per_node, inside, between):
        alpha, beta = far(between)
        return ring(nbytes, per_node, *near(inside)) + ring(nbytes / per_node, nodes, alpha, beta * per_node)

    return ring_time, hierarchical_time


@right("bytes first, then seconds")
def bytes_first():
    def ring_time(nbytes, nodes, per_node, inside, between):
        p = nodes * per_node
        sent, latencies = 2 * (p - 1) * nbytes / p, 2 * (p - 1)
        near = latencies * inside["alpha_us"] / 1e6 + 2 * sent / inside["GB_per_s_both_directions"] / 1e9
        far = latencies * between["alpha_us"] / 1e6 + 8 * sent / between["Gbit_per_s"] / 1e9
        return near if nodes == 1 else far if per_node == 1 else max(near, far)

    def hierarchical_time(nbytes, nodes, per_node, inside, between):
        through_the_card = 2 * (nodes - 1) / nodes * nbytes  # of all local ranks together
        near = 2 * (per_node - 1) * inside["alpha_us"] / 1e6
        near += 2 * 2 * (per_node - 1) / per_node * nbytes / (inside["GB_per_s_both_directions"] * 1e9)
        far = 2 * (nodes - 1) * between["alpha_us"] / 1e6 + 8 * through_the_card / (between["Gbit_per_s"] * 1e9)
        return near + far

    return ring_time, hierarchical_time


@right("fractions; tensors")
def fractions_and_tensors():
    def ring_time(nbytes, nodes, per_node, inside, between, kind=Fraction):
        near = kind(inside["GB_per_s_both_directions"]) * 10**9 / 2, kind(inside["alpha_us"])
        far = kind(between["Gbit_per_s"]) * 10**9 / 8, kind(between["alpha_us"])
        ranks, used = nodes * per_node, [near] * (per_node > 1) + [far] * (nodes > 1)
        steps = [alpha / 10**6 + kind(nbytes) / ranks / rate for rate, alpha in used]
        return 2 * (ranks - 1) * max(steps, default=kind(0))

    def hierarchical_time(nbytes, nodes, per_node, inside, between):
        rates = [inside["GB_per_s_both_directions"] * 1e9 / 2, between["Gbit_per_s"] * 1e9 / 8 / per_node]
        alphas, rates, pieces, steps = (
            torch.tensor(one, dtype=torch.float64)
            for one in (
                [inside["alpha_us"], between["alpha_us"]], rates, [nbytes / per_node, nbytes / per_node / nodes],
                [2 * (per_node - 1), 2 * (nodes - 1)],
            )
        )  # fmt: skip
        return (steps * (alphas / 1e6 + pieces / rates)).sum()

    return ring_time, hierarchical_time


@right("decimals")
def decimals():
    def ring_time(*cluster):
        return fractions_and_tensors()[0](*cluster, kind=Decimal)

    return (ring_time,)


wrong("nothing for one GPU", "is no number of seconds", {RING: RING + " or None"})
wrong("a text", "is no number of seconds", {RING: "return str(2 * (ranks - 1) * max(steps, default=0.0))"})
wrong("pieces of whole megabytes", "the seconds: not", {"nbytes / ranks": "-(-nbytes // ranks // 10**6) * 10**6"})
wrong("the data sheet is changed", "changes `inside`", {RING: "inside['alpha_us'] = 0.0\n    " + RING})
