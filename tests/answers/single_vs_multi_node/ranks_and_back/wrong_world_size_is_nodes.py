REJECTED_WITH = "The world size counts processes, yours counts nodes"


def rank_of(node_rank, local_rank, nodes, per_node):
    return node_rank * per_node + local_rank


def coordinates_of(rank, nodes, per_node):
    return rank // per_node, rank % per_node, nodes
