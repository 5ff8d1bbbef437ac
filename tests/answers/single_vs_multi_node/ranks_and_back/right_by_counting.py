def _places(nodes, per_node):
    return [(node, local) for node in range(nodes) for local in range(per_node)]


def rank_of(node_rank, local_rank, nodes, per_node):
    return _places(nodes, per_node).index((node_rank, local_rank))


def coordinates_of(rank, nodes, per_node):
    places = _places(nodes, per_node)
    return [*places[rank], len(places)]
