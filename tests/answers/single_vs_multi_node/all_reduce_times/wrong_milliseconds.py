REJECTED_WITH = "in seconds, not in milliseconds"


def numbers(inside, between):
    """α in seconds and β in seconds per byte, inside and between."""
    return (
        inside["alpha_us"] * 1e-6,
        2 / (inside["GB_per_s_both_directions"] * 1e9),
        between["alpha_us"] * 1e-6,
        8 / (between["Gbit_per_s"] * 1e9),
    )


def ring_time(nbytes, nodes, per_node, inside, between):
    a_in, b_in, a_out, b_out = numbers(inside, between)
    p = nodes * per_node
    hops = [a_in + nbytes / p * b_in] * (per_node > 1) + [a_out + nbytes / p * b_out] * (nodes > 1)
    return 1000 * 2 * (p - 1) * max(hops, default=0.0)


def hierarchical_time(nbytes, nodes, per_node, inside, between):
    a_in, b_in, a_out, b_out = numbers(inside, between)
    within = 2 * (per_node - 1) * (a_in + nbytes / per_node * b_in)
    across = 2 * (nodes - 1) * (a_out + nbytes / per_node / nodes * b_out * per_node)
    return within + across
