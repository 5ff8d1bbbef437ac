def _ring(nbytes, ranks, alpha, beta):
    seconds = 0.0
    for _ in range(2):  # add up, hand out
        for _ in range(ranks - 1):
            seconds += alpha + nbytes / ranks * beta
    return seconds


def _inside(link):
    return link["alpha_us"] / 1e6, 1 / (link["GB_per_s_both_directions"] / 2 * 1e9)


def _between(link):
    return link["alpha_us"] / 1e6, 1 / (link["Gbit_per_s"] / 8 * 1e9)


def ring_time(nbytes, nodes, per_node, inside, between):
    ranks = nodes * per_node
    times = [0.0]
    if per_node > 1:
        times.append(_ring(nbytes, ranks, *_inside(inside)))
    if nodes > 1:
        times.append(_ring(nbytes, ranks, *_between(between)))
    return max(times)


def hierarchical_time(nbytes, nodes, per_node, inside, between):
    alpha, beta = _between(between)
    # The two halves of an all-reduce inside, and one all-reduce of a part between, over a part of the card.
    return _ring(nbytes, per_node, *_inside(inside)) + _ring(nbytes / per_node, nodes, alpha, beta * per_node)
