"""Exercise 3 of the lab on one node and several: how long an all-reduce takes."""

# ruff: noqa: F401 (modules that changed answers use)
import functools
import math

from known_answers import right, wrong


def ring_time(nbytes, nodes, per_node, inside, between):
    ranks = nodes * per_node
    steps = []
    if per_node > 1:
        bytes_per_s = inside["GB_per_s_both_directions"] * 1e9 / 2
        steps.append(inside["alpha_us"] * 1e-6 + nbytes / ranks / bytes_per_s)
    if nodes > 1:
        bytes_per_s = between["Gbit_per_s"] * 1e9 / 8
        steps.append(between["alpha_us"] * 1e-6 + nbytes / ranks / bytes_per_s)
    return 2 * (ranks - 1) * max(steps, default=0.0)


def hierarchical_time(nbytes, nodes, per_node, inside, between):
    part = nbytes / per_node
    inside_bytes_per_s = inside["GB_per_s_both_directions"] * 1e9 / 2
    scatter = (per_node - 1) * (inside["alpha_us"] * 1e-6 + part / inside_bytes_per_s)
    share_of_card = between["Gbit_per_s"] * 1e9 / 8 / per_node
    across = 2 * (nodes - 1) * (between["alpha_us"] * 1e-6 + part / nodes / share_of_card)
    return scatter + across + scatter


EQUAL = {
    "16: 0.0 → 1.0": "with one GPU there are no steps",
    "16: 0.0 → -1.0": "with one GPU there are no steps",
}
RING = "    return 2 * (ranks - 1) * max(steps, default=0.0)"
LEVELS = "    return scatter + across + scatter"
HALF, BITS = "* 1e9 / 2", "* 1e9 / 8"


# --- right, and written differently

right("nothing to do for one GPU", {"    steps = []\n": "    steps = []\n    if ranks == 1:\n        return 0\n"})
right("in microseconds until the end", {RING: "    return 2 * (ranks - 1) * 1e6 * max(steps, default=0) / 1e6"})


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


# --- wrong: the ring

wrong("bits for bytes", "divide by 8 to get bytes", {BITS: "* 1e9", HALF: HALF})
wrong("both directions", "take half", {HALF: "* 1e9"})
wrong("both mistakes", "times what it should be", {BITS: "* 1e9", HALF: "* 1e9"})
wrong("milliseconds", "not in milliseconds", {RING: RING.replace("2 *", "2000 *")})
wrong("microseconds", "not in microseconds", {RING: RING.replace("2 *", "2e6 *")})
wrong("α in seconds", "1 µs is 0.000001 s", {'["alpha_us"] * 1e-6': '["alpha_us"]'})
wrong("α in milliseconds", "times what it should be", {'["alpha_us"] * 1e-6': '["alpha_us"] * 1e-3'})
wrong("one round", "once to hand out the sum", {RING: "    return (ranks - 1) * max(steps, default=0.0)"})
wrong("the whole tensor", "not the whole tensor", {"nbytes / ranks": "nbytes"})
wrong("(p − 1)/p forgotten", "is forgotten", {"nbytes / ranks": "nbytes / max(1, ranks - 1)"})
wrong("α once", "costs an α", {
    'steps.append(inside["alpha_us"] * 1e-6 + ': 'steps.append(inside["alpha_us"] * 1e-6 / 2 / (ranks - 1) + ',
    'steps.append(between["alpha_us"] * 1e-6 + ': 'steps.append(between["alpha_us"] * 1e-6 / 2 / (ranks - 1) + ',
})  # fmt: skip
wrong(
    "no α",
    "the latency α is forgotten",
    {'inside["alpha_us"] * 1e-6 + nbytes': "nbytes", 'between["alpha_us"] * 1e-6 + nbytes': "nbytes"},
)
wrong(
    "the network inside a node",
    "nobody uses the network",
    {"    if nodes > 1:": "    steps.clear()\n    if ranks > 1:"},
)
wrong(
    "the link inside",
    "not the link inside a node",
    {"    if nodes > 1:": "    if not ranks:", "    if per_node > 1:": "    if ranks > 1:"},
)
wrong("the link inside, though each node has one GPU", "times what it should be", {
    "    if per_node > 1:": "    if per_node >= 1:"
})  # fmt: skip
wrong("two GPUs need no link", "times what it should be", {"    if per_node > 1:": "    if per_node > 2:"})
wrong("the mean of both", "not the mean of both", {"max(steps, default=0.0)": "(sum(steps) / max(1, len(steps)))"})
wrong("the smaller bandwidth", "α counts too", {
    RING: "    slow = 8 / between['Gbit_per_s'] > 2 / inside['GB_per_s_both_directions']\n"
    "    return 2 * (ranks - 1) * (steps[slow] if len(steps) > 1 else sum(steps))"
})  # fmt: skip
wrong("one rank for each node", "not only through one per node", {"ranks = nodes * per_node": "ranks = nodes"})
wrong(
    "never less than a step",
    "one GPU waits for nobody",
    {"default=0.0": "default=1e-6", "(ranks - 1)": "max(1, ranks - 1)"},
)
wrong("nothing for one GPU", "returns a number of seconds", {RING: RING + " or None"})
wrong("a text", "returns a number of seconds", {RING: RING.replace("return ", "return str(") + ")"})
wrong(
    "rounded to microseconds",
    "a result is rounded, or was kept",
    {RING: "    return round(2 * (ranks - 1) * max(steps, default=0.0), 6)"},
)
wrong(
    "pieces of whole megabytes", "times what it should be", {"nbytes / ranks": "math.ceil(nbytes / ranks / 1e6) * 1e6"}
)
wrong("gibibytes", "times what it should be", {HALF: "* 2**30 / 2"})
wrong("the data sheet is changed", "was replaced", {RING: "    inside['alpha_us'] = 0.0\n" + RING})
wrong(
    "the first cluster only",
    "times what it should be",
    {
        "def ring_time(nbytes, nodes, per_node, inside, between)": "def ring_time(nbytes, nodes, per_node, inside, between, seen={})",
        "    return 2 *": "    return seen.get(0) or seen.setdefault(0, 2 *",
        "default=0.0)": "default=0.0))",
    },
)

# --- wrong: two levels

wrong("a card for each rank", "share the node's one card", {"/ 8 / per_node": "/ 8"})
wrong("the whole tensor between", "only a part of n / per_node", {"part / nodes": "nbytes / nodes"})
wrong("no all-gather", "the all-gather is forgotten", {LEVELS: "    return scatter + across"})
wrong("one round between", "with two rounds", {"across = 2 *": "across ="})
wrong("bits, in two levels", "divide by 8 to get bytes", {"1e9 / 8 / per_node": "1e9 / per_node"})
wrong(
    "half, in two levels",
    "take half",
    {
        'inside_bytes_per_s = inside["GB_per_s_both_directions"] * 1e9 / 2': 'inside_bytes_per_s = inside["GB_per_s_both_directions"] * 1e9'
    },
)
wrong("milliseconds, in two levels", "not in milliseconds", {LEVELS: "    return 1000 * (scatter + across + scatter)"})
wrong("phases at the same time", "times what it should be", {LEVELS: "    return max(2 * scatter, across)"})
wrong("all-reduces inside", "times what it should be", {LEVELS: "    return 4 * scatter + across"})


@wrong("from the course", "the course's own code is no answer")
def from_the_course():
    def ring_time(nbytes, nodes, per_node, inside, between):
        from utils.hardware import links

        near = links.Link("", inside["alpha_us"] / 1e6, inside["GB_per_s_both_directions"] * 1e9 / 2, 0, "lab")
        far = links.Link("", between["alpha_us"] / 1e6, between["Gbit_per_s"] * 1e9 / 8, 0, "lab")
        return links.flat_ring_all_reduce(nbytes, nodes, per_node, near, far)

    return (ring_time,)


# --- wrong: what is remembered

RING_OF = "def ring_time(nbytes, nodes, per_node, inside, between"
wrong("known by bytes and shape", "times what it should be", {
    RING_OF: RING_OF + ", seen={}", RING: "    seconds = 2 * (ranks - 1) * max(steps, default=0.0)\n"
    "    return seen.setdefault((nbytes, nodes, per_node), seconds)"
})  # fmt: skip
wrong("known by the data sheets", "a result is rounded, or was kept", {
    RING_OF: RING_OF + ", seen={}", RING: "    seconds = 2 * (ranks - 1) * max(steps, default=0.0)\n"
    "    return seen.setdefault((nodes, per_node, *inside.values(), *between.values()), seconds)"
})  # fmt: skip
wrong("a data sheet is read once", "times what it should be", {
    "    steps = []\n": "    seen = ring_time.__dict__.setdefault('seen', {})\n"
    "    inside, between = (seen.setdefault(id(one), dict(one)) for one in (inside, between))\n    steps = []\n"
})  # fmt: skip
wrong(
    "at most sixteen nodes",
    "times what it should be",
    {"    steps = []\n": "    ranks = min(nodes, 16) * per_node\n    steps = []\n"},
)


@right("fractions; tensors")
def fractions_and_tensors():
    import torch

    def ring_time(nbytes, nodes, per_node, inside, between):
        from fractions import Fraction

        near = Fraction(inside["GB_per_s_both_directions"]) * 10**9 / 2, Fraction(inside["alpha_us"])
        far = Fraction(between["Gbit_per_s"]) * 10**9 / 8, Fraction(between["alpha_us"])
        ranks, used = nodes * per_node, [near] * (per_node > 1) + [far] * (nodes > 1)
        steps = [alpha / 10**6 + Fraction(nbytes, ranks) / rate for rate, alpha in used]
        return 2 * (ranks - 1) * max(steps, default=Fraction(0))

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


wrong("pieces of whole bytes", "a result is rounded, or was kept", {"nbytes / ranks": "nbytes // ranks"})
wrong("the network, if there is one", "the network is not always the slower one", {
    "    if nodes > 1:\n": "    if nodes > 1:\n        steps.clear()\n"
})  # fmt: skip


@right("decimals")
def decimals():
    from decimal import Decimal

    def ring_time(nbytes, nodes, per_node, inside, between):
        alphas, rates = [], []
        if per_node > 1:
            alphas.append(Decimal(inside["alpha_us"]) / 10**6)
            rates.append(Decimal(inside["GB_per_s_both_directions"]) * 10**9 / 2)
        if nodes > 1:
            alphas.append(Decimal(between["alpha_us"]) / 10**6)
            rates.append(Decimal(between["Gbit_per_s"]) * 10**9 / 8)
        ranks = nodes * per_node
        steps = (alpha + Decimal(nbytes) / ranks / rate for alpha, rate in zip(alphas, rates, strict=True))
        return 2 * (ranks - 1) * max(steps, default=Decimal(0))

    return (ring_time,)


wrong("fifty digits for all decimals", "leaves the numbers of decimal other", {
    "    steps = []\n": "    import decimal\n\n    decimal.getcontext().prec = 50\n    steps = []\n"
})  # fmt: skip
