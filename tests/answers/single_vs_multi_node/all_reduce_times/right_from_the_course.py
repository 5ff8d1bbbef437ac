def _links(inside, between):
    from utils.hardware.links import Link

    return (
        Link("inside", inside["alpha_us"] / 1e6, inside["GB_per_s_both_directions"] * 1e9 / 2, 0, "lab"),
        Link("between", between["alpha_us"] / 1e6, between["Gbit_per_s"] * 1e9 / 8, 0, "lab"),
    )


def ring_time(nbytes, nodes, per_node, inside, between):
    from utils.hardware import links

    return links.flat_ring_all_reduce(nbytes, nodes, per_node, *_links(inside, between))


def hierarchical_time(nbytes, nodes, per_node, inside, between):
    from utils.hardware import links

    return links.hierarchical_all_reduce(nbytes, nodes, per_node, *_links(inside, between))
