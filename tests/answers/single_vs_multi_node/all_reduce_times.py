"""Exercise 4 of the lab on one node and several: how long an all-reduce takes. What is not here is in the official solution."""

from decimal import Decimal

from known_answers import right, wrong

RING = "return 2 * (ranks - 1) * max(steps, default=0.0)"
right("in microseconds until the end", {RING: "return 2 * (ranks - 1) * 1e6 * max(steps, default=0) / 1e6"})


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


@right("decimals")
def decimals():
    def ring_time(nbytes, nodes, per_node, inside, between):
        piece = Decimal(nbytes) / (nodes * per_node * 10**9)
        near = Decimal(inside["alpha_us"]) / 10**6 + 2 * piece / inside["GB_per_s_both_directions"]
        far = Decimal(between["alpha_us"]) / 10**6 + 8 * piece / between["Gbit_per_s"]
        return 2 * (nodes * per_node - 1) * max(near * (per_node > 1), far * (nodes > 1))

    return (ring_time,)


wrong("nothing for one GPU", "is no number of seconds", {RING: RING + " or None"})
wrong("a text", "is no number of seconds", {RING: "return str(2 * (ranks - 1) * max(steps, default=0.0))"})
wrong("pieces of whole megabytes", "the seconds: not", {"nbytes / ranks": "-(-nbytes // ranks // 10**6) * 10**6"})
wrong("the data sheet is changed", "changes `inside`", {RING: "inside['alpha_us'] = 0.0\n    " + RING})
